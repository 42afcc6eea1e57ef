"""Triton's routes that generate: infer with tensors, generate and generate_stream with JSON values.

generate and generate_stream are MindIE's too. Where neither header nor prefix says whose a request
is, its body does (D-2), so the answer's protocol is known only once that is read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.connection import reply
from serve_app.api.context import RequestContext, context_of, header
from serve_app.api.dialects.base import Call, Dialect, ErrorReply
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie_generate import Target, TextDialect
from serve_app.api.dialects.trtllm import Stop
from serve_app.api.dialects.trtllm_generate import STREAM_TYPE, GenerateDialect, is_tritons
from serve_app.api.dialects.trtllm_infer import InferDialect, StopAsked
from serve_app.api.dispatch import of_version, version_of
from serve_app.api.generate import Exchange, Services
from serve_app.api.kserve.http_body import BINARY_TYPE, HEADER, JSON_TYPE
from serve_app.api.kserve.inflate import Inflated
from serve_app.api.running import RunKey
from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.limits import MAX_BODY_BYTES, MAX_TENSOR_BODY_BYTES

_HEADER: Final = HEADER.lower().encode()


def endpoint_name(services: Services, model: str) -> str:
    """The endpoint that a model's name means: its own, or for the alias the first that generates."""
    alias = services.config.trtllm.alias
    if not alias or model != alias or any(endpoint.name == alias for endpoint in services.directory):
        return model
    generating = (each.name for each in services.directory if each.task is not Task.EMBEDDINGS)
    return next(generating, model)


class InferRoute:
    """POST .../infer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        names, services = scope["path_params"], self._services
        header_length = header(scope, _HEADER)
        dialect = InferDialect(
            services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            header_length=header_length,
        )
        context_of(scope).render_error = dialect.render_error
        unpacked = Inflated(receive, header(scope, b"content-encoding"))
        # Only with that header are there binary tensors, and a reason for more than JSON may have.
        most = MAX_BODY_BYTES if header_length is None else MAX_TENSOR_BODY_BYTES
        exchange = Exchange(dialect, services, _bare(scope), unpacked, send, max_bytes=most)
        try:
            await exchange.run(endpoint_name(services, names["model"]))
        except StopAsked as asked:
            told = stopped(services, context_of(scope), asked.stop, names.get("version"))
            await reply(send, 200, {"content-type": JSON_TYPE}, msgspec.json.encode({**told, "outputs": []}))


class ValuesRoute:
    """POST .../generate and .../generate_stream."""

    def __init__(self, services: Services, *, stream: bool) -> None:
        self._services = services
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        names, services = scope["path_params"], self._services
        dialect = self._dialect(scope)
        try:
            exchange = Exchange(dialect, services, scope, receive, send)
            await exchange.run(endpoint_name(services, names["model"]))
        except StopAsked as asked:
            body = msgspec.json.encode(stopped(services, context_of(scope), asked.stop, names.get("version")))
            if self._stream:
                await reply(send, 200, {"content-type": STREAM_TYPE}, b"data: " + body + b"\n\n")
            else:
                await reply(send, 200, {"content-type": JSON_TYPE}, body)

    def _dialect(self, scope: Scope) -> Dialect:
        names = scope["path_params"]
        return GenerateDialect(
            self._services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            stream=self._stream,
        )


class SharedRoute(ValuesRoute):
    """The same for a request that may be MindIE's, which its body tells unless the protocol is forced."""

    def _dialect(self, scope: Scope) -> Dialect:
        names, context = scope["path_params"], context_of(scope)
        target = Target(
            model=names["model"],
            version=names.get("version"),
            id=context.client_id or context.id,
            stream=self._stream,
        )
        text = TextDialect(self._services.config.mindie, target)
        return text if context.is_forced else EitherDialect(text, super()._dialect(scope), context)


class EitherDialect:
    """MindIE's dialect until a body shows that it is Triton's; for one request."""

    def __init__(self, mindie: Dialect, triton: Dialect, context: RequestContext) -> None:
        self._triton = triton
        self._chosen = mindie
        self._context = context
        self.stream_type = mindie.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises as the dialect of the body."""
        if is_tritons(raw):
            self._chosen, self._context.family = self._triton, Family.TRITON
            self.stream_type = self._chosen.stream_type
        return self._chosen.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._chosen.render_error(error)


def stopped(services: Services, context: RequestContext, stop: Stop, version: str | None) -> dict[str, Any]:
    """End the caller's requests of an id, if this gateway runs any; what its empty answer says.

    Raises ModelNotFound or VersionNotFound.
    """
    name = endpoint_name(services, stop.model)
    endpoint = services.directory.find_known(name, services.backend)
    entities = endpoint.served_entities if version is None else of_version(endpoint, version)
    services.running.stop_all(RunKey.of(context, name, stop.id))
    return {"model_name": stop.model, "model_version": version_of(entities[0]), "id": stop.id}


def _bare(scope: Scope) -> Scope:
    """The request without the headers that say how its body is framed, which is undone already."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name != b"content-encoding" and (name, _media(value)) != (b"content-type", BINARY_TYPE)
    ]
    return {**scope, "headers": headers}


def _media(value: bytes) -> str:
    return str(value.partition(b";")[0].strip().lower(), "latin-1")
