"""Triton's routes that generate: infer with tensors, generate and generate_stream with JSON values.

generate and generate_stream are MindIE's too. Where neither header nor prefix says whose a request
is, its body does, so the answer's protocol is known only once that is read.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.context import RequestContext, context_of, header
from serve_app.api.dialects.base import Dialect
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie.generate import Target, TextDialect
from serve_app.api.dialects.triton.aliases import Meaning, endpoint_name, meaning
from serve_app.api.dialects.triton.dialect import Stop
from serve_app.api.dialects.triton.ensemble.step_exchange import InferSteps, StepExchange, ValueSteps
from serve_app.api.dialects.triton.generate import STREAM_TYPE, GenerateDialect
from serve_app.api.dialects.triton.infer import InferDialect, StopAsked
from serve_app.api.dialects.triton.role import Role
from serve_app.api.dialects.v2.known_model import EitherDialect, KnownModel
from serve_app.api.edge.connection import reply
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.exchange.generate import Exchange, Services
from serve_app.api.exchange.running import RunKey
from serve_app.api.kserve.http_body import BINARY_TYPE, HEADER, JSON_TYPE
from serve_app.api.kserve.inflate import Inflated
from serve_app.limits import MAX_BODY_BYTES, MAX_TENSOR_BODY_BYTES

_HEADER: Final = HEADER.lower().encode()


class InferRoute:
    """POST .../infer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        names, services = scope["path_params"], self._services
        header_length = header(scope, _HEADER)
        meant = meaning(services, names["model"])
        unpacked = Inflated(receive, header(scope, b"content-encoding"))
        # Only with that header are there binary tensors, and a reason for more than JSON may have.
        most = MAX_BODY_BYTES if header_length is None else MAX_TENSOR_BODY_BYTES
        if not meant.role.generates:
            steps = InferSteps(meant.role, names["model"], names.get("version"), header_length)
            await StepExchange(steps, services, _bare(scope), unpacked, send, max_bytes=most).run(
                meant.endpoint
            )
            return
        dialect = InferDialect(
            services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            header_length=header_length,
            role=meant.role,
        )
        known = KnownModel(dialect, partial(find_model, services, meant.endpoint))
        exchange = Exchange(known, services, _bare(scope), unpacked, send, max_bytes=most)
        try:
            await exchange.run(meant.endpoint)
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
        meant = self._meaning(scope)
        if not meant.role.generates:
            steps = ValueSteps(meant.role, names["model"], names.get("version"), stream=self._stream)
            await StepExchange(steps, services, scope, receive, send).run(meant.endpoint)
            return
        dialect = self._dialect(scope, meant)
        try:
            await Exchange(dialect, services, self._read_as(scope, meant), receive, send).run(meant.endpoint)
        except StopAsked as asked:
            body = msgspec.json.encode(stopped(services, context_of(scope), asked.stop, names.get("version")))
            if self._stream:
                await reply(send, 200, {"content-type": STREAM_TYPE}, b"data: " + body + b"\n\n")
            else:
                await reply(send, 200, {"content-type": JSON_TYPE}, body)

    def _meaning(self, scope: Scope) -> Meaning:
        """What the model's name means."""
        return meaning(self._services, scope["path_params"]["model"])

    def _read_as(self, scope: Scope, meant: Meaning) -> Scope:
        """The request without headers that the dialect looks at itself."""
        return scope

    def _dialect(self, scope: Scope, meant: Meaning) -> Dialect:
        return KnownModel(self._tritons(scope, meant), partial(find_model, self._services, meant.endpoint))

    def _tritons(self, scope: Scope, meant: Meaning) -> Dialect:
        names = scope["path_params"]
        return GenerateDialect(
            self._services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            stream=self._stream,
            role=meant.role,
        )


class SharedRoute(ValuesRoute):
    """The same for a request that may be MindIE's, which its body tells.

    Unless the protocol is forced, or the model has a name that only Triton's clients know.
    """

    def _meaning(self, scope: Scope) -> Meaning:
        """MindIE has no names but the endpoints'."""
        if context_of(scope).is_forced:
            return Meaning(scope["path_params"]["model"], Role.TENSORS)
        return super()._meaning(scope)

    def _read_as(self, scope: Scope, meant: Meaning) -> Scope:
        if context_of(scope).is_forced or meant.role is Role.ENSEMBLE:
            return scope
        return {**scope, "headers": [each for each in scope["headers"] if each[0] != b"content-type"]}

    def _dialect(self, scope: Scope, meant: Meaning) -> Dialect:
        names, context = scope["path_params"], context_of(scope)
        if meant.role is Role.ENSEMBLE and not context.is_forced:
            context.family = Family.TRITON
            return super()._dialect(scope, meant)
        target = Target(
            model=names["model"],
            version=names.get("version"),
            id=context.client_id or context.id,
            stream=self._stream,
        )
        text = TextDialect(self._services.config.mindie, target)
        find = partial(find_model, self._services, meant.endpoint)
        if context.is_forced:
            return KnownModel(text, find)
        return EitherDialect(text, self._tritons(scope, meant), context, header(scope, b"content-type"), find)


def find_model(services: Services, endpoint: str) -> None:
    """Raises ModelNotFound."""
    services.directory.resolve(endpoint, services.backend)


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
