"""gRPC's server reflection: services and messages, for clients without the .proto files."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool

from serve_app.api.services import Services
from serve_app.rpc import health_pb2, kserve_pb2
from serve_app.rpc import reflection_pb2 as pb
from serve_app.rpc.call import RpcCall, parsed

MAX_QUESTION_BYTES: Final = 8_192  # the name of a file or a symbol

# These files do not import each other, and each has a pool of its own.
_FILES: Final[tuple[Any, ...]] = tuple(module.DESCRIPTOR for module in (kserve_pb2, health_pb2, pb))
_SERVICES: Final = sorted(s.full_name for file in _FILES for s in file.services_by_name.values())
_POOL: Final = DescriptorPool()
for _file in _FILES:
    _POOL.AddSerializedFile(_file.serialized_pb)


async def reflect(call: RpcCall, services: Services) -> None:
    """Answer requests until the client has sent its last. Raises ServeError."""
    while (raw := await call.read_soon(MAX_QUESTION_BYTES)) is not None:
        await call.write(answer(parsed(pb.ServerReflectionRequest, raw)).SerializeToString())


def answer(question: Any) -> Any:
    """The ServerReflectionResponse to a ServerReflectionRequest."""
    reply = pb.ServerReflectionResponse(valid_host=question.host, original_request=question)
    kind = question.WhichOneof("message_request")
    try:
        if kind == "list_services":
            reply.list_services_response.service.extend(pb.ServiceResponse(name=name) for name in _SERVICES)
        elif kind == "file_by_filename":
            _tell(reply, _POOL.FindFileByName(question.file_by_filename))
        elif kind == "file_containing_symbol":
            _tell(reply, _file_of(question.file_containing_symbol))
        elif kind == "all_extension_numbers_of_type":
            found = _POOL.FindMessageTypeByName(question.all_extension_numbers_of_type)
            reply.all_extension_numbers_response.base_type_name = found.full_name  # none has extensions
        else:
            raise KeyError(kind)
    except KeyError:
        reply.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        reply.error_response.error_message = "there is no such service, file or symbol"
    return reply


def _file_of(symbol: str) -> Any:
    """The file that declares a service, a method or a message. Raises KeyError."""
    try:
        return _POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # the pool does not count methods as symbols, and clients do
        return _POOL.FindMethodByName(symbol).containing_service.file


def _tell(reply: Any, file: Any) -> None:
    reply.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
