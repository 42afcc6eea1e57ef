"""The bodies of /infer on HTTP: JSON, followed by tensors of the binary tensor data extension.

`Inference-Header-Content-Length` says where the JSON ends. The binary tensors follow, in the
order of the JSON, each with `binary_data_size` bytes. Shared memory and classification are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from serve_app import limits
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.kserve.datatype import checked
from serve_app.api.kserve.json_values import tensor_from_json, to_json
from serve_app.api.kserve.message import InferRequest, InferResponse, Parameter, flag
from serve_app.api.protocol.fields import Mark
from serve_app.errors import BodyTooLarge, InvalidBody, InvalidField
from serve_app.types import Tensor

HEADER: Final = "Inference-Header-Content-Length"
JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"

MAX_INPUTS: Final = 256  # tensors of a request; there are fewer names
_SHARED_MEMORY: Final = "shared_memory_region"


class InferBody(WireModel):
    """The JSON fields of a request that are common to all models."""

    # -Infinity means something in some tensors, so each input looks at its own numbers.

    id: Any = None
    parameters: Any = None
    inputs: Annotated[Any, Mark.SELF_CHECKED] = None
    outputs: Any = None


@dataclass(frozen=True, slots=True)
class BinaryOutputs:
    """Which outputs are wanted as bytes instead of JSON."""

    default: bool = False  # of outputs that do not say
    by_name: Mapping[str, bool] | None = None

    def wants(self, name: str) -> bool:
        return (self.by_name or {}).get(name, self.default)


def decode(
    raw: bytes, header_length: str | None, *, model: str, version: str | None
) -> tuple[InferRequest, BinaryOutputs]:
    """The request in a body. Raises InvalidBody, InvalidField or BodyTooLarge."""
    head, rest = _split(raw, header_length)
    body = parse_body(InferBody, head)
    parameters = _parameters("parameters", body.parameters)
    entries = _entries("inputs", body.inputs)
    if not entries:
        raise InvalidField("inputs", "must hold at least one tensor")
    outputs = None if body.outputs is None else _entries("outputs", body.outputs)
    request = InferRequest(
        model=model,
        version=version,
        id=request_id(body.id),
        inputs=_inputs(entries, rest),
        outputs=None if not outputs else tuple(entry.name for entry in outputs),
        parameters=parameters,
    )
    binary = BinaryOutputs(
        default=flag(parameters, "binary_data_output") or False,
        by_name={entry.name: wants for entry in outputs or () if (wants := entry.binary_data) is not None},
    )
    return request, binary


def encode(response: InferResponse, binary: BinaryOutputs) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if binary tensors follow."""
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, tensor in response.outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": tensor.dtype, "shape": tensor.shape}
        if binary.wants(name):
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            entry["data"] = to_json(name, tensor)
        outputs.append(entry)
    head = msgspec.json.encode({**envelope(response), "outputs": outputs})
    return b"".join((head, *tail)), len(head) if tail else None


def envelope(response: InferResponse) -> dict[str, Any]:
    """The fields of a response beside the outputs."""
    own_id = {} if response.id is None else {"id": response.id}
    return {"model_name": response.model, "model_version": response.version, **own_id}


def request_id(value: object) -> str | None:
    """A client's id: any string; an empty string counts as no id. Raises InvalidField."""
    if value is not None and (type(value) is not str or len(value) > limits.MAX_TENSOR_ID_CHARS):
        raise InvalidField("id", f"must be a string of up to {limits.MAX_TENSOR_ID_CHARS} characters")
    return value or None


def _split(raw: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    size = len(raw)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= 12):
            raise InvalidBody(f"the header {HEADER} must be a number")
        size = int(header_length)
        if size > len(raw):
            raise InvalidBody(f"the header {HEADER} must be at most the length of the body")
    if size > limits.MAX_BODY_BYTES:
        raise BodyTooLarge(f"the JSON of the body must not exceed {limits.MAX_BODY_BYTES} bytes")
    return raw[:size], memoryview(raw)[size:]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    fields: dict[str, Any]
    parameters: dict[str, Parameter]

    @property
    def binary_data(self) -> bool | None:
        return flag(self.parameters, "binary_data")


def _entries(field: str, value: object) -> list[_Entry]:
    """The objects of `inputs` or `outputs`. Their names must be distinct."""
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > MAX_INPUTS:
        raise InvalidField(field, f"must be a list of up to {MAX_INPUTS} tensors")
    found: dict[str, _Entry] = {}
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidField(field, "each must be an object with a name")
        if name in found:
            raise InvalidField(name, f"is there twice in {field}")
        parameters = _parameters(name, item.get("parameters"))
        if _SHARED_MEMORY in parameters:
            raise InvalidField(name, "shared memory is not available; send the data")
        if parameters.get("classification"):
            raise InvalidField(name, "classification is not available; ask for the tensor")
        found[name] = _Entry(name, item, parameters)
    return list(found.values())


def _parameters(owner: str, value: object) -> dict[str, Parameter]:
    """Parameters of a request or tensor: null counts as absent."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidField(owner, "parameters must be an object")
    return {key: item for key, item in value.items() if isinstance(item, bool | int | float | str)}


def _inputs(entries: Sequence[_Entry], rest: memoryview) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    start = 0
    for entry in entries:
        name, fields = entry.name, entry.fields
        shape, datatype, data = fields.get("shape"), fields.get("datatype"), fields.get("data")
        if not isinstance(shape, list):
            raise InvalidField(name, "shape must be a list of integers")
        size = entry.parameters.get("binary_data_size")
        if size is None:
            if data is None:
                raise InvalidField(name, "must have data, or binary_data_size among its parameters")
            found[name] = tensor_from_json(name, datatype, shape, data)
            continue
        if data is not None:
            raise InvalidField(name, "must not have data beside binary_data_size")
        if type(size) is not int or not 0 <= size <= len(rest) - start:
            raise InvalidField(
                name, f"binary_data_size must be an integer from 0 to {len(rest) - start}, what is left"
            )
        found[name] = checked(name, datatype, shape, bytes(rest[start : start + size]))
        start += size
    if start != len(rest):
        raise InvalidBody(f"the tensors take {start} bytes, but {len(rest)} follow the JSON")
    return found
