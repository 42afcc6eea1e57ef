"""A POST route that generates: body, endpoint, permit, budget, entity, deltas, answer.

The same for every dialect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from serve_app.api.admission.metering import most_used
from serve_app.api.admission.permits import Lease, deadline_s
from serve_app.api.backend import Backend
from serve_app.api.context import RequestContext, context_of
from serve_app.api.dialects.base import Call, Dialect, OwnHeaders
from serve_app.api.edge.body import read_body
from serve_app.api.edge.connection import Writer, while_connected
from serve_app.api.exchange.dispatch import ANSWERED_BY, Attempt, begin, choose
from serve_app.api.exchange.running import RunKey, StoppableBackend
from serve_app.api.exchange.stream import collect, rendered, send_stream
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.errors import InvalidField, ServeError, from_info
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types import Adapter, GenerateRequest, ModelInfo

IGNORED_FIELDS: Final = "x-ignored-fields"
MAX_IGNORED_NAMES: Final = 20  # listed in that header
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")  # each part of a name with dots
_MAX_NAME_CHARS: Final = 256


class GenerateRoute:
    """An ASGI app for one dialect. The body names the endpoint."""

    def __init__(self, dialect: Dialect, services: Services) -> None:
        self._dialect = dialect
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ServeError before the first byte of the answer, ClientGone at any time."""
        await Exchange(self._dialect, self._services, scope, receive, send).run()


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        dialect: Dialect,
        services: Services,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`max_bytes`: of the body."""
        self._max_bytes = max_bytes
        self._dialect = dialect
        self._services = services
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context: RequestContext = context_of(scope)
        self._context.render_error = dialect.render_error

    async def run(self, endpoint: str | None = None, entity: str | None = None) -> None:
        """Read, answer and account for it; `endpoint` and `entity` where the path names them."""
        services = self._services
        services.admission.check()  # a flood is refused before its bodies are read
        with services.bodies.lease() as lease:
            # The body is not kept in a variable: it would live as long as the stream.
            call = await self._parse(await self._read(lease), endpoint)
            with in_words_of(call.names), services.admission.permits(len(call.requests)):
                await while_connected(self._receive, self._answer(call, entity))

    async def _read(self, lease: Lease) -> bytes:
        return await read_body(self._scope, self._receive, lease.take, max_bytes=self._max_bytes)

    async def _parse(self, raw: bytes, endpoint: str | None) -> Call:
        return await self._services.aside(len(raw), partial(self._dialect.parse, endpoint=endpoint), raw)

    async def _answer(self, call: Call, entity: str | None) -> None:
        services, context = self._services, self._context
        async with under_way(call, entity, self._scope, services, self._status) as (attempt, deadline):
            renderer = call.renderer(context.id, replace(attempt.info, name=attempt.entity.name))
            headers = answer_headers(
                call.ignored, self._dialect.stream_type if call.stream else "application/json"
            )
            headers[ANSWERED_BY] = attempt.entity.name
            with Writer(self._send) as writer:
                if call.stream:
                    await send_stream(writer, attempt, renderer, headers, context, services.metrics, deadline)
                    return
                n = call.requests[0].n
                choices = await collect(attempt, n, context, services.metrics, deadline)
                usage, is_large = attempt.generation.usage, any(choice.tensors for choice in choices)
                body = await rendered(lambda: renderer.whole(choices, usage), is_large=is_large)
                if isinstance(renderer, OwnHeaders):
                    headers |= renderer.headers
                await writer.start(200, {**headers, "content-length": str(len(body))})
                await writer.body(body)

    def _status(self, error: ServeError) -> int:
        return self._dialect.render_error(error).status


@asynccontextmanager
async def under_way(
    call: Call,
    entity: str | None,
    scope: Scope,
    services: Services,
    status_of: Callable[[ServeError], int],
) -> AsyncIterator[tuple[Attempt, float]]:
    """What answers `call`, and until when (the event loop's time); over any transport.

    Finds the endpoint, draws from its budgets, tries its entities, and accounts for what was used
    once the block ends, which aborts what still runs. `entity`: the one that the route names;
    `status_of` an error goes to the journal. Raises ServeError.
    """
    context = context_of(scope)
    limit = deadline_s(call.timeout_s, services.config.request_timeout_s)
    deadline = asyncio.get_running_loop().time() + limit
    endpoint, adapter = services.directory.resolve(call.model, services.backend)
    context.endpoint = endpoint.name
    context.ignored = call.ignored
    entities = choose(endpoint, call, entity, scope, context, services.backend)
    requests = _complete(call, context, limit, adapter)

    def tries(each: ServedEntity) -> None:
        context.entity = each.name

    tries(entities[0])
    async with services.meter.admit(endpoint, lambda: most_used(endpoint, requests), context) as metered:

        def to(each: ServedEntity, info: ModelInfo) -> list[GenerateRequest]:
            record = replace(metered.record, entity=each.name) if call.stream else None
            return [replace(call.fit(request, info), model=each.app, record=record) for request in requests]

        try:
            backend, patience_s = _backend_of(call, services, context), services.config.restart_wait_s
            attempt = await begin(backend, entities, to, tries, metered.follow, deadline, patience_s)
            async with aclosing(attempt):
                yield attempt, deadline
        except ServeError as error:
            context.status = status_of(error)
            raise
        finally:
            services.metrics.tokens(context.endpoint, context.entity, metered.usage)


def _backend_of(call: Call, services: Services, context: RequestContext) -> Backend:
    """The backend; with a way to stop this call, where its client has an id for it."""
    if call.client_id is None:
        return services.backend
    key = RunKey.of(context, call.model, call.client_id)
    return StoppableBackend(services.backend, services.running, key)


def _complete(
    call: Call, context: RequestContext, timeout_s: float, adapter: str | None
) -> list[GenerateRequest]:
    """The requests with what only the server knows: ids, the tenant's salt, the deadline, a named adapter."""
    salt = context.caller.salt if context.caller else ""
    requests = [replace(each, salt=salt, timeout_s=timeout_s, progress=True) for each in call.requests]
    if adapter is not None:
        if any(request.adapter is not None for request in requests):
            raise InvalidField("lora_task_id: the model's name has an adapter already", param="lora_task_id")
        requests = [replace(request, adapter=Adapter(name=adapter)) for request in requests]
    if len(requests) == 1:
        return [replace(requests[0], id=context.id)]
    return [
        replace(request, id=f"{context.id}-{i}", parent_id=context.id) for i, request in enumerate(requests)
    ]


@contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the block about a field of `names` call it as the client calls it."""
    try:
        yield
    except ServeError as error:
        ours, message = error.param, error.message
        if ours is None or ours not in names:
            raise
        theirs = names[ours]
        if message.startswith(ours):
            message = theirs + message.removeprefix(ours)
        raise from_info(replace(error.info(), param=theirs, message=message)) from error


def answer_headers(ignored: Sequence[str], content_type: str) -> dict[str, str]:
    """Those of every answer; `ignored`: fields of the body that nothing comes of."""
    headers = {"content-type": content_type}
    if ignored:
        headers[IGNORED_FIELDS] = listed(ignored)
    return headers


def listed(ignored: Sequence[str]) -> str:
    """Names of fields as a header has them: the first ones, and `?` for what may not stand there."""
    names = [_safe(name) for name in ignored[:MAX_IGNORED_NAMES]]
    return ", ".join([*names, "..."] if len(ignored) > MAX_IGNORED_NAMES else names)


def _safe(name: str) -> str:
    parts = (part if _SAFE_NAME.fullmatch(part) else "?" for part in name.split("."))
    return ".".join(parts)[:_MAX_NAME_CHARS]
