"""How a request to a pre- or postprocessing model is served: body, permit, questions, answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from serve_app.api.context import context_of
from serve_app.api.dialects.triton.ensemble.step import EnsembleStep
from serve_app.api.dialects.triton.ensemble.text_step import INPUTS, PARSERS, answer_step
from serve_app.api.dialects.triton.errors import render_error
from serve_app.api.dialects.triton.generate import STREAM_TYPE, GenerateBody, value_object
from serve_app.api.dialects.triton.request.values import tensors_of_values
from serve_app.api.dialects.triton.role import Role
from serve_app.api.edge.body import parse_body
from serve_app.api.edge.connection import reply
from serve_app.api.exchange.dispatch import ANSWERED_BY
from serve_app.api.exchange.frame import exchange
from serve_app.api.exchange.stream import STREAM_HEADERS
from serve_app.api.kserve.http_body import (
    BINARY_TYPE,
    HEADER,
    JSON_TYPE,
    BinaryOutputs,
    decode,
    encode,
    request_id,
)
from serve_app.api.kserve.message import InferRequest, InferResponse
from serve_app.api.services import Services
from serve_app.limits import MAX_BODY_BYTES


@dataclass(slots=True)
class InferSteps:
    """Reads and writes tensors, for the route `infer`."""

    role: Role
    model: str
    version: str | None
    header_length: str | None
    _binary: BinaryOutputs = field(default_factory=BinaryOutputs)

    def parse(self, raw: bytes) -> EnsembleStep:
        """Raises ServeError."""
        request, self._binary = decode(raw, self.header_length, model=self.model, version=self.version)
        return PARSERS[self.role](request)

    def render(self, response: InferResponse) -> tuple[Mapping[str, str], bytes]:
        """Headers and body."""
        body, json_length = encode(response, self._binary)
        if json_length is None:
            return {"content-type": JSON_TYPE}, body
        return {"content-type": BINARY_TYPE, HEADER.lower(): str(json_length)}, body


@dataclass(frozen=True, slots=True)
class ValueSteps:
    """Reads and writes JSON values, for `generate` and `generate_stream`. A stream consists of one event."""

    role: Role
    model: str
    version: str | None
    stream: bool

    def parse(self, raw: bytes) -> EnsembleStep:
        """Raises ServeError."""
        body, table = parse_body(GenerateBody, raw), INPUTS[self.role]
        values, parameters = body.split(table)
        request = InferRequest(
            model=self.model,
            version=self.version,
            id=request_id(body.id),
            inputs=tensors_of_values(values, self.model, table),
            parameters=parameters,
        )
        return PARSERS[self.role](request)

    def render(self, response: InferResponse) -> tuple[Mapping[str, str], bytes]:
        """Headers and body."""
        body = value_object(response)
        if self.stream:
            return {"content-type": STREAM_TYPE, **STREAM_HEADERS}, b"data: " + body + b"\n\n"
        return {"content-type": JSON_TYPE}, body


async def exchange_steps(
    steps: InferSteps | ValueSteps,
    endpoint: str,
    services: Services,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    max_bytes: int = MAX_BODY_BYTES,
) -> None:
    """One request and its answer. Raises ServeError only before the answer, but ClientGone at any time."""
    context_of(scope).render_error = render_error

    def parse(raw: bytes) -> EnsembleStep:
        services.endpoints(scope).find(endpoint)
        return steps.parse(raw)

    async def answer(step: EnsembleStep) -> None:
        async with answer_step(step, endpoint, scope, services) as (entity, response):
            headers, body = steps.render(response)
            await reply(send, 200, {**headers, ANSWERED_BY: entity.name}, body)

    await exchange(services, scope, receive, parse, answer, max_bytes=max_bytes)
