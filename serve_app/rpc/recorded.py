"""Messages of gRPC as an inference table keeps them: in the JSON form that /infer has over HTTP.

An answer is one line for each response, or `{"error": ...}`. Knows no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from serve_app.api.kserve.message import InferResponse
from serve_app.api.kserve.recorded import Elements, request_json, response_json
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.tensors import decoded, infer_message
from serve_app.types import Tensor


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
    """A response of ours, whose outputs are always raw."""
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
