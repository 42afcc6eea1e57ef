"""Tensors as an inference table keeps them: in the JSON form of /infer, whatever the transport.

Binary data are written as elements. A tensor that does not fit in the text is written without elements, but
with the number of its bytes, `binary_data_size`. Independent of tables, and of all transports but HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from serve_app.api.kserve.datatype import BF16, ELEMENTS, checked
from serve_app.api.kserve.http_body import envelope
from serve_app.api.kserve.json_values import to_json
from serve_app.api.kserve.message import InferRequest, InferResponse
from serve_app.errors import InvalidField
from serve_app.types import Tensor

MAX_ELEMENTS_BYTES: Final = 2**20  # of JSON, over all tensors of a body
_SIZE: Final = "binary_data_size"


class HttpTensors:
    """Bodies of /infer as text; a `types.payload.BodyForm`."""

    def __init__(self, header_length: str | None) -> None:
        """`header_length`: the length of the request's JSON, from its header; None: it is only JSON."""
        self._header_length = header_length

    def request(self, body: bytes) -> str:
        """The text of a request's body. Raises ValueError if it cannot be written as text."""
        if self._header_length is None:
            return body.decode()
        return _without_tail(body, int(self._header_length))

    def response(self, parts: Sequence[bytes]) -> str:
        """The text of an answer. Parsing finds the JSON's end: the bytes after it belong to tensors."""
        body = b"".join(parts)
        as_bytes = body.decode("latin-1")  # one character a byte
        _, end = json.JSONDecoder().raw_decode(as_bytes)
        return _without_tail(body, end)


class Elements:
    """Writes the elements of tensors until the size limit is reached."""

    def __init__(self, most: int = MAX_ELEMENTS_BYTES) -> None:
        self._left = most

    def entry(self, name: str, tensor: Tensor) -> dict[str, Any]:
        """A tensor in the JSON form of /infer."""
        entry = {"name": name, "datatype": tensor.dtype, "shape": tensor.shape}
        return {**entry, **self.data(name, tensor)}

    def data(self, name: str, tensor: Tensor) -> dict[str, Any]:
        """The field `data`, or the parameter that says how many bytes are left out."""
        written = _elements(name, tensor)
        if written is None or len(written) > self._left:
            return {"parameters": {_SIZE: len(tensor.data)}}
        self._left -= len(written)
        return {"data": msgspec.Raw(written)}


def request_json(request: InferRequest) -> bytes:
    """A request as JSON, including the model's name, which over HTTP is in the path."""
    elements = Elements()
    outputs = {} if request.outputs is None else {"outputs": [{"name": name} for name in request.outputs]}
    return msgspec.json.encode(
        {
            "model_name": request.model,
            **({} if request.version is None else {"model_version": request.version}),
            **({} if request.id is None else {"id": request.id}),
            **({"parameters": dict(request.parameters)} if request.parameters else {}),
            "inputs": [elements.entry(name, tensor) for name, tensor in request.inputs.items()],
            **outputs,
        }
    )


def response_json(response: InferResponse, elements: Elements) -> bytes:
    """One response as JSON. All responses to a request share one `elements`."""
    outputs = [elements.entry(name, tensor) for name, tensor in response.outputs.items()]
    return msgspec.json.encode({**envelope(response), "outputs": outputs})


def _without_tail(body: bytes, json_size: int) -> str:
    """The JSON of a body, with elements in place of the bytes that follow the JSON. Raises ValueError."""
    tail, start, elements = body[json_size:], 0, Elements()
    if not tail:
        return body.decode()
    told: dict[str, Any] = msgspec.json.decode(body[:json_size])
    for entry in (*(told.get("inputs") or ()), *(told.get("outputs") or ())):
        parameters: dict[str, Any] = entry.pop("parameters", None) or {}
        size = parameters.pop(_SIZE, None)
        if size is not None:
            raw = tail[start : start + size]
            start += size
            written = elements.data(
                entry["name"], checked(entry["name"], entry["datatype"], entry["shape"], raw)
            )
            parameters |= written.pop("parameters", {})
            entry |= written
        if parameters:
            entry["parameters"] = parameters
    return msgspec.json.encode(told).decode()


def _elements(name: str, tensor: Tensor) -> bytes | None:
    """The elements as a flat JSON list; None: they cannot be written as JSON."""
    if tensor.dtype == BF16:  # JSON has no BF16, but every BF16 is an FP32
        halves = np.frombuffer(tensor.data, ELEMENTS[BF16])
        wide = (halves.astype("<u4") << 16).view("<f4")
        tensor = Tensor(dtype="FP32", shape=tensor.shape, data=wide.tobytes())
    try:
        return bytes(to_json(name, tensor))
    except InvalidField:  # bytes that are no UTF-8, or a BOOL that is none
        return None
