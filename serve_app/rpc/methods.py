"""Every method of the service: its scope and its handler. The answers equal those over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import ParseDict
from starlette.types import Scope as AsgiScope

from serve_app.api.dialects.triton import repository
from serve_app.api.dialects.triton.metadata import (
    find,
    is_ready,
    model_config,
    model_metadata,
    server_metadata,
)
from serve_app.api.dialects.triton.statistics import statistics
from serve_app.api.pages.condition import condition
from serve_app.api.services import Services
from serve_app.errors import ModelNotFound, VersionNotFound
from serve_app.limits import MAX_BODY_BYTES
from serve_app.rpc import health_pb2
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.call import RpcCall, parsed
from serve_app.rpc.infer import model_infer, model_stream_infer
from serve_app.rpc.reflection import reflect
from serve_app.types import Scope

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "/grpc.health.v1.Health/Check"
REFLECTION: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")
)

Handler = Callable[
    [Services, AsgiScope, Any], Awaitable[Mapping[str, object]]
]  # a message -> the JSON form of the answer


class Method(NamedTuple):
    """One method. The scope has no default; None means that the method is open."""

    scope: Scope | None
    run: Callable[[RpcCall, Services], Awaitable[None]]


async def _server_live(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return {"live": True}


async def _server_ready(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return {"ready": condition(services).is_ready}


async def _server_metadata(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return server_metadata(services.config.v1_dialect)


async def _model_ready(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    """If a model is not served, the answer is "not ready" and not an error."""
    try:
        return {"ready": is_ready(services, find(services, scope, _names(message)))}
    except (ModelNotFound, VersionNotFound):
        return {"ready": False}


async def _model_metadata(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return model_metadata(find(services, scope, _names(message)))


async def _model_config(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return {"config": model_config(services, find(services, scope, _names(message)))}


async def _model_statistics(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return statistics(services, scope, _names(message) if message.name else None)


async def _repository_index(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    return {"models": repository.index(services, scope, only_ready=message.ready)}


async def _load(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    found = repository.controlled(services, scope, message.model_name, dict(message.parameters), "load")
    await repository.load(services, found)
    return {}


async def _unload(services: Services, scope: AsgiScope, message: Any) -> Mapping[str, object]:
    found = repository.controlled(services, scope, message.model_name, dict(message.parameters), "unload")
    repository.refuse_to_unload(found)


async def _health(call: RpcCall, services: Services) -> None:
    """gRPC's standard check. It needs no caller. The message is not read, since there is only one service."""
    kinds = health_pb2.HealthCheckResponse
    status = kinds.SERVING if condition(services).is_ready else kinds.NOT_SERVING
    await call.write(kinds(status=status).SerializeToString())


def _names(message: Any) -> dict[str, str]:
    """The model and version, in the form of a route's path parameters."""
    version = {"version": message.version} if message.version else {}
    return {"model": message.name, **version}


def _page(name: str, answer: Handler) -> Method:
    """A method with one small message in and one out."""
    request, response = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")

    async def run(call: RpcCall, services: Services) -> None:
        """Raises ServeError."""
        with services.bodies.lease() as lease:
            raw = await call.read_only(MAX_BODY_BYTES)
            lease.take(len(raw))
            body = await answer(services, call.scope, parsed(request, raw))
        await call.write(ParseDict({**body}, response()).SerializeToString())

    return Method(Scope.INFERENCE, run)


_PAGES: Final[Mapping[str, Handler]] = {
    "ServerLive": _server_live,
    "ServerReady": _server_ready,
    "ServerMetadata": _server_metadata,
    "ModelReady": _model_ready,
    "ModelMetadata": _model_metadata,
    "ModelConfig": _model_config,
    "ModelStatistics": _model_statistics,
    "RepositoryIndex": _repository_index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
}
METHODS: Final[Mapping[str, Method]] = {
    HEALTH: Method(None, _health),  # as /readyz: orchestrators have no key
    **dict.fromkeys(REFLECTION, Method(Scope.INFERENCE, reflect)),
    f"/{SERVICE}/ModelInfer": Method(Scope.INFERENCE, model_infer),
    f"/{SERVICE}/ModelStreamInfer": Method(Scope.INFERENCE, model_stream_infer),
    **{f"/{SERVICE}/{name}": _page(name, answer) for name, answer in _PAGES.items()},
}
