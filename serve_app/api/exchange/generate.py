"""A POST route that generates: body, endpoint, permit, budget, entity, deltas, answer.

The same for every dialect.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from serve_app.api.admission.estimates import most_used
from serve_app.api.admission.stoppable import StopKey
from serve_app.api.context import RequestContext, context_of
from serve_app.api.edge.connection import Writer
from serve_app.api.edge.keepalive import KeptAlive
from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.exchange.dispatch import ANSWERED_BY, Attempt, candidates_of
from serve_app.api.exchange.frame import Exchange, in_words_of
from serve_app.api.exchange.guarding import Guarding
from serve_app.api.exchange.keeping import keep
from serve_app.api.exchange.shadow import copy_generation
from serve_app.api.exchange.stream import STREAM_HEADERS, collect, note_broken, rendered, send_stream
from serve_app.api.protocol.dialect import Call, Dialect, OwnHeaders, Renderer
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.errors import InvalidField, ServeError
from serve_app.types import Adapter, GenerateRequest, ModelInfo, Overflow, Usage

IGNORED_FIELDS: Final = "x-ignored-fields"
CLAMPED_FIELDS: Final = "x-clamped-fields"
MAX_IGNORED_NAMES: Final = 20  # listed in that header
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")  # each part of a name with dots
_MAX_NAME_CHARS: Final = 256
_LENGTH: Final = "max_tokens"  # as replicas call the length of an answer
_OVERFLOW: Final = {"clamp": Overflow.CLAMP, "refuse": Overflow.ERROR}
_BUDGET: Final = "thinking_tokens"  # as replicas call a budget of thoughts


class GenerateRoute:
    """An ASGI app for one dialect. The body names the endpoint."""

    def __init__(self, dialect: Dialect, services: Services) -> None:
        self._dialect = dialect
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer's first byte, but ClientGone at any time."""
        await GenerateExchange(self._dialect, self._services, scope, receive, send).run()


class GenerateExchange(Exchange[Call]):
    """One request that generates, and its answer."""

    _dialect: Dialect

    async def _answer(self, call: Call, entity: str | None) -> None:
        services, alive_s = self._services, self._services.config.sse_keepalive_s
        if not (call.stream and alive_s):
            async with (
                under_way(call, entity, self._scope, services) as (attempt, deadline),
                Writer(self._send) as writer,
            ):
                await self._send_answer(call, writer, attempt, deadline)
            return
        async with KeptAlive(self._send, alive_s) as writer:
            renderer: Renderer | None = None

            def on_entity(each: ServedEntity, info: ModelInfo) -> None:
                nonlocal renderer
                renderer = self._renderer(call, each, info)
                writer.allow({**self._headers(call), **STREAM_HEADERS})

            try:
                with in_words_of(call.names):
                    running = under_way(call, entity, self._scope, services, on_entity)
                    async with running as (attempt, deadline):
                        await self._send_answer(call, writer, attempt, deadline)
            except ServeError as error:
                if renderer is None or not writer.has_begun:
                    raise
                note_broken(error, self._context)
                await writer.body(renderer.broken(error))

    async def _send_answer(self, call: Call, writer: Writer, attempt: Attempt, deadline: float) -> None:
        """Raises ServeError only before the first byte, but ClientGone at any time."""
        metrics, context = self._services.metrics, self._context
        renderer, headers = self._renderer(call, attempt.entity, attempt.info), self._headers(call)
        headers[ANSWERED_BY] = attempt.entity.name
        keeping = partial(keep, self._services, context, renderer)
        if call.stream:
            headers |= clamped_headers(call, attempt)
            await send_stream(writer, attempt, renderer, headers, context, metrics, deadline, keeping)
            return
        choices = await collect(attempt, call.requests[0].n, context, metrics, deadline)
        usage, is_large = attempt.stream.usage, any(choice.tensors for choice in choices)
        await keeping(usage, choices)
        body = await rendered(lambda: renderer.whole(choices, usage), is_large=is_large)
        headers |= clamped_headers(call, attempt)
        if isinstance(renderer, OwnHeaders):
            headers |= renderer.headers
        await writer.start(200, {**headers, "content-length": str(len(body))})
        await writer.body(body)

    def _renderer(self, call: Call, entity: ServedEntity, info: ModelInfo) -> Renderer:
        return call.renderer(self._context.id, replace(info, name=entity.name))

    def _headers(self, call: Call) -> dict[str, str]:
        stream_type = self._dialect.stream_type if call.stream else "application/json"
        return answer_headers(self._context.ignored, stream_type)


@asynccontextmanager
async def under_way(
    call: Call,
    entity: str | None,
    scope: Scope,
    services: Services,
    on_entity: Callable[[ServedEntity, ModelInfo], None] = lambda entity, info: None,
) -> AsyncIterator[tuple[Attempt, float]]:
    """The attempt of the entity that answers `call`, and the deadline in the event loop's time.

    For any transport. Finds the endpoint, draws from its budgets and tries its entities. The end of the block
    aborts requests that are still running, and accounts for the tokens. `entity` is the entity that the route
    names, if any. `on_entity` is called before each attempt. Raises ServeError.
    """
    context, backend = context_of(scope), services.backend
    endpoint, adapter = services.endpoints(scope).resolve(call.model, backend)
    context.ignored = call.ignored
    candidates = candidates_of(endpoint, call, entity, scope, services)
    overflow = _OVERFLOW[services.config.max_tokens_over_window]
    requests = _complete(call, context, candidates.limit_s, adapter, overflow)

    def claim() -> Usage:
        models = [backend.info(each.app) for each in endpoint.served_entities]
        return most_used(endpoint, requests, models)

    async with services.meter.admit(endpoint, claim, context) as metered:

        async def ask(each: ServedEntity) -> Attempt:
            info = await backend.model(each.app)
            context.ignored = _ignored_by(info, call)
            on_entity(each, info)
            record = replace(metered.record, entity=each.name) if call.stream else None
            complete = [replace(call.fit(it, info), model=each.app, record=record) for it in requests]
            stream = CallStream(backend, complete, at_once=info.max_requests)
            metered.follow(stream)
            if call.client_id is not None:
                key = StopKey.of(context, call.model, call.client_id)
                entry.close()  # of an entity that failed
                entry.enter_context(services.stoppable.entry(key, stream.stop))
            return await Attempt.begin(each, info, stream)

        guard = services.guards.of(endpoint)
        try:
            if guard is not None:
                guarding = Guarding(guard, services, context, candidates.deadline)
                requests = await guarding.prompts(call, requests)
            with ExitStack() as entry:
                attempt = await candidates.first_answer(ask)
                if call.stream:
                    metered.deliver()
                copy_generation(services, context, endpoint, call, requests, attempt, metered.record)
                with closing(attempt.stream):
                    if guard is not None:
                        attempt = await guarding.answer(call, requests, attempt)
                    yield attempt, candidates.deadline
        except ServeError as error:
            if not context.status:  # otherwise a comment has begun the answer
                context.status = context.render_error(error).status
            raise
        finally:
            services.metrics.tokens(context.endpoint, context.entity, metered.usage)


def _ignored_by(info: ModelInfo, call: Call) -> tuple[str, ...]:
    """The body's fields that have no effect with this model."""
    has_budget = any(request.thinking_tokens is not None for request in call.requests)
    if not has_budget or info.limits_thoughts:
        return call.ignored
    return (*call.ignored, call.names.get(_BUDGET, _BUDGET))


def _complete(
    call: Call, context: RequestContext, timeout_s: float, adapter: str | None, overflow: Overflow
) -> list[GenerateRequest]:
    """The requests with the fields that the server sets: ids, the tenant's salt, the deadline, an adapter.

    `overflow` applies to requests that leave the treatment of overflow to the operator.
    """
    salt = context.caller.salt if context.caller else ""
    requests = [
        # A salt of the client's divides its own cache, and never reaches another tenant's.
        replace(
            each,
            salt=f"{salt}:{each.salt}" if each.salt else salt,
            timeout_s=timeout_s,
            progress=True,
            overflow=overflow if each.overflow is Overflow.OPERATOR else each.overflow,
        )
        for each in call.requests
    ]
    if adapter is not None:
        if any(request.adapter is not None for request in requests):
            raise InvalidField("lora_task_id", "the model's name has an adapter already")
        requests = [replace(request, adapter=Adapter(name=adapter)) for request in requests]
    if len(requests) == 1:
        return [replace(requests[0], id=context.id)]
    return [
        replace(request, id=f"{context.id}-{i}", parent_id=context.id) for i, request in enumerate(requests)
    ]


def answer_headers(ignored: Sequence[str], content_type: str) -> dict[str, str]:
    """The headers of every answer; `ignored`: fields of the body without effect."""
    headers = {"content-type": content_type}
    if ignored:
        headers[IGNORED_FIELDS] = listed(ignored)
    return headers


def clamped_headers(call: Call, attempt: Attempt) -> dict[str, str]:
    """The header that states the output limit, if that is lower than requested."""
    most = attempt.stream.clamped
    return {} if most is None else {CLAMPED_FIELDS: f"{call.names.get(_LENGTH, _LENGTH)}={most}"}


def listed(ignored: Sequence[str]) -> str:
    """Names of fields for a header: the first ones, with `?` for characters that a header may not have."""
    names = [_safe(name) for name in ignored[:MAX_IGNORED_NAMES]]
    return ", ".join([*names, "..."] if len(ignored) > MAX_IGNORED_NAMES else names)


def _safe(name: str) -> str:
    parts = (part if _SAFE_NAME.fullmatch(part) else "?" for part in name.split("."))
    return ".".join(parts)[:_MAX_NAME_CHARS]
