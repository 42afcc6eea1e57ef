"""Converts gRPC messages to inference requests, and responses to messages.

Either all inputs come as raw bytes, or each comes in the field for its datatype. Outputs are always
sent as raw bytes. Shared memory and classification are refused, as over HTTP. Inference tables keep requests
and answers in the JSON form of /infer: an answer has one line for each response, or `{"error": ...}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from serve_app.api.kserve.datatype import BF16, BYTES, ELEMENTS, checked
from serve_app.api.kserve.http_body import MAX_INPUTS, request_id
from serve_app.api.kserve.message import InferRequest, InferResponse, Parameter
from serve_app.api.kserve.recorded import Elements, request_json, response_json
from serve_app.errors import InvalidField
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.call import parsed
from serve_app.types import Tensor

FINAL: Final = "triton_final_response"  # parameter of every response of a stream

# Datatype -> the field of InferTensorContents with its elements; what is missing travels raw.
CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
# The types of elements in protobuf, also of fields that hold narrower types.
_WIDE: Final[Mapping[str, str]] = {
    "bool_contents": "u1",
    "int_contents": "<i4",
    "int64_contents": "<i8",
    "uint_contents": "<u4",
    "uint64_contents": "<u8",
    "fp32_contents": "<f4",
    "fp64_contents": "<f8",
}
_NARROWED: Final = ("int_contents", "uint_contents")
_RAW_ONLY: Final = ("FP16", BF16)
_REGION: Final = "shared_memory_region"


def infer_message(raw: bytes) -> pb.ModelInferRequest:
    """Raises InvalidBody unless `raw` is a ModelInferRequest."""
    return parsed(pb.ModelInferRequest, raw)


def decoded(message: pb.ModelInferRequest) -> InferRequest:
    """Raises InvalidField, naming the tensor or the field."""
    for output in message.outputs:
        if not output.name:
            raise InvalidField("outputs", "each must have a name")
        if _REGION in output.parameters:
            raise InvalidField(output.name, "shared memory is not available")
        if "classification" in output.parameters:
            raise InvalidField(output.name, "classification is not available; ask for the tensor")
    names = [output.name for output in message.outputs]
    if len(set(names)) != len(names) or len(names) > MAX_INPUTS:
        raise InvalidField("outputs", f"must be up to {MAX_INPUTS} different names")
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=request_id(message.id),
        inputs=_inputs(message),
        outputs=tuple(names) or None,
        parameters=_parameters(message.parameters),
    )


def encoded(response: InferResponse, *, in_stream: bool) -> pb.ModelInferResponse:
    """`in_stream`: whether more responses may follow; if so, each response says whether it is the last."""
    message = pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=response.id or "",
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=name, datatype=tensor.dtype, shape=tensor.shape)
            for name, tensor in response.outputs.items()
        ],
        raw_output_contents=[tensor.data for tensor in response.outputs.values()],
    )
    if in_stream:
        message.parameters[FINAL].bool_param = response.is_final
    return message


def _inputs(message: pb.ModelInferRequest) -> dict[str, Tensor]:
    inputs, raw = message.inputs, message.raw_input_contents
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise InvalidField("inputs", f"must hold 1 to {MAX_INPUTS} tensors")
    if raw and len(raw) != len(inputs):
        raise InvalidField(
            "raw_input_contents",
            f"must be there for all {len(inputs)} inputs or for none, not for {len(raw)}",
        )
    found: dict[str, Tensor] = {}
    for i, each in enumerate(inputs):
        name = each.name
        if not name:
            raise InvalidField("inputs", "each must have a name")
        if name in found:
            raise InvalidField(name, "is there twice in inputs")
        if _REGION in each.parameters:
            raise InvalidField(name, "shared memory is not available; send the data")
        if raw and each.HasField("contents"):
            raise InvalidField(name, "must not have contents beside raw_input_contents")
        found[name] = checked(name, each.datatype, each.shape, raw[i] if raw else _contents(each))
    return found


def _contents(each: pb.ModelInferRequest.InferInputTensor) -> bytes:
    """The bytes of a tensor with typed elements. `checked` refuses an unknown datatype."""
    name, datatype = each.name, each.datatype
    if datatype in _RAW_ONLY:
        raise InvalidField(name, f"{datatype} must be in raw_input_contents")
    field = CONTENTS.get(datatype)
    if field is None:
        return b""
    if any(other.name != field for other, _ in each.contents.ListFields()):
        raise InvalidField(name, f"{datatype} must be in contents.{field}, and nothing else there")
    values = getattr(each.contents, field)
    if datatype == BYTES:
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    numbers = np.asarray(values, _WIDE[field])
    narrow = numbers.astype(ELEMENTS[datatype])
    if field in _NARROWED and not np.array_equal(narrow, numbers):
        raise InvalidField(name, f"must hold numbers that {datatype} has")
    return narrow.tobytes()


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(value, kind)
    return found


class RpcTensors:
    """A `types.payload.BodyForm`. Every part of an answer is a ModelStreamInferResponse."""

    def request(self, body: bytes) -> str:
        return request_json(decoded(infer_message(body))).decode()

    def response(self, parts: Sequence[bytes]) -> str:
        return b"\n".join(_lines(parts)).decode()


def _lines(parts: Sequence[bytes]) -> Iterator[bytes]:
    elements = Elements()
    for part in parts:
        message = pb.ModelStreamInferResponse.FromString(part)
        if message.error_message:
            yield msgspec.json.encode({"error": message.error_message})
        else:
            yield response_json(_response(message.infer_response), elements)


def _response(message: pb.ModelInferResponse) -> InferResponse:
    """Decode one of our own responses, whose outputs are always raw."""
    outputs = zip(message.outputs, message.raw_output_contents, strict=True)
    return InferResponse(
        model=message.model_name,
        version=message.model_version,
        id=message.id or None,
        outputs={
            output.name: Tensor(dtype=output.datatype, shape=tuple(output.shape), data=raw)
            for output, raw in outputs
        },
    )
