"""From a call to the served entities that may answer it, and on to the first that does.

`endpoints.split` draws the entity. This module gives it what a request tells: the routing key, the
entity that a privileged caller names, and which models can answer now. Another entity is tried only
while nothing was delivered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Backend
from serve_app.api.context import RequestContext, header
from serve_app.api.exchange.call_stream import CallStream, PromptDelta
from serve_app.api.guard.answers import PromptStream
from serve_app.endpoints.endpoint import Endpoint, ServedEntity, Task
from serve_app.endpoints.split import candidates
from serve_app.errors import (
    DeadlineExceeded,
    GenerationFailed,
    InvalidField,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    ServeError,
    Unavailable,
    VersionNotFound,
)
from serve_app.limits import MAX_USER_CHARS
from serve_app.types import GenerateRequest, ModelInfo, Scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUTING_KEY: Final = "X-Routing-Key"
SERVED_ENTITY: Final = "X-Served-Entity"
ANSWERED_BY: Final = "served-model-name"  # header of every answer

# Failures of one entity that another entity may not have.
_FAILS_OVER: Final = (Unavailable, Overloaded, GenerationFailed)


class Wanted(Protocol):
    """The fields of a call that decide over its entity."""

    @property
    def task(self) -> Task: ...

    @property
    def version(self) -> str | None: ...

    @property
    def user(self) -> str | None: ...


def choose(
    endpoint: Endpoint,
    call: Wanted,
    entity: str | None,
    scope: AsgiScope,
    context: RequestContext,
    backend: Backend,
) -> tuple[ServedEntity, ...]:
    """The entities to try, best first. `entity`: the one that the route names, if any.

    Raises InvalidField, ModelNotFound, VersionNotFound, or PermissionDenied for a choice that the
    caller's scopes do not allow.
    """
    _check_task(endpoint, call.task)

    def is_ready(each: ServedEntity) -> bool:
        return backend.is_ready(each.app)

    wanted = header(scope, SERVED_ENTITY.lower().encode()) if entity is None else entity
    if wanted is not None:
        _check_may_choose(context, "an entity")
        found = endpoint.entity(wanted)
        if found is None:
            raise ModelNotFound(
                "model", f"{SERVED_ENTITY}: the endpoint has no such served entity", joint=None
            )
        return (found,)
    versions = None if call.version is None else of_version(endpoint, call.version)
    if versions is None or len(versions) == len(endpoint.served_entities):
        # A version that every entity has chooses nothing, so the traffic split does.
        key = _routing_key(endpoint, call, scope, context)
        return candidates(endpoint, key, is_ready)
    _check_may_choose(context, "a version of an endpoint with several")
    best_first = sorted(versions, key=lambda each: not is_ready(each))
    return tuple(best_first) if endpoint.falls_back else (best_first[0],)


def _check_may_choose(context: RequestContext, what: str) -> None:
    """Raises PermissionDenied unless the caller may go past the traffic split."""
    if context.caller is None or Scope.ROUTING not in context.caller.scopes:
        raise PermissionDenied(f"the API key lacks the scope '{Scope.ROUTING}', to choose {what}")


def version_of(entity: ServedEntity) -> str:
    """The version of `entity` as clients name it."""
    return entity.version or "1"


def of_version(endpoint: Endpoint, version: str) -> tuple[ServedEntity, ...]:
    """The entities of this version, at least one. Raises VersionNotFound."""
    found = tuple(entity for entity in endpoint.served_entities if version_of(entity) == version)
    if not found:
        raise VersionNotFound("version", "the model has no such version")
    return found


@dataclass(slots=True)
class Attempt:
    """An entity that answers: its first deltas, and the stream of the rest."""

    entity: ServedEntity
    info: ModelInfo
    first: list[PromptDelta]
    stream: PromptStream


async def begin(
    backend: Backend,
    entities: Sequence[ServedEntity],
    requests: Callable[[ServedEntity, ModelInfo], list[GenerateRequest]],
    tries: Callable[[ServedEntity], None],
    begun: Callable[[CallStream], None],
    deadline: float,
    patience_s: float,
) -> Attempt:
    """The first of `entities` that delivers; see `first_answer`. `begun` is called with each stream."""

    async def attempt(entity: ServedEntity) -> Attempt:
        return await _attempt(backend, entity, requests, begun)

    return await first_answer(backend, entities, attempt, tries, deadline, patience_s)


async def first_answer(
    backend: Backend,
    entities: Sequence[ServedEntity],
    ask: Callable[[ServedEntity], Awaitable[T]],
    tries: Callable[[ServedEntity], None],
    deadline: float,
    patience_s: float,
) -> T:
    """The answer of the first of `entities` that can give one before `deadline` (the event loop's time).

    If none can while a model restarts, the model's return is waited for, `patience_s` at most. `tries` is
    called with each entity that is tried. Raises the ServeError of the last one.
    """
    clock = asyncio.get_running_loop().time
    until = min(deadline, clock() + patience_s)
    while True:
        try:
            return await _first_of(entities, ask, tries, deadline)
        except Unavailable:
            if not await backend.recovery([entity.app for entity in entities], until - clock()):
                raise
        entities = sorted(entities, key=lambda entity: not backend.is_ready(entity.app))


async def _first_of(
    entities: Sequence[ServedEntity],
    ask: Callable[[ServedEntity], Awaitable[T]],
    tries: Callable[[ServedEntity], None],
    deadline: float,
) -> T:
    for left, entity in zip(range(len(entities) - 1, -1, -1), entities, strict=True):
        tries(entity)
        try:
            async with asyncio.timeout_at(deadline):
                return await ask(entity)
        except TimeoutError:
            raise too_late() from None
        except _FAILS_OVER as error:
            if not left:
                raise
            logger.warning("entity %s failed before it answered: %s", entity.name, type(error).__name__)
    raise Unavailable("no served entity can answer; try again", retry_after_s=2.0)


async def _attempt(
    backend: Backend,
    entity: ServedEntity,
    requests: Callable[[ServedEntity, ModelInfo], list[GenerateRequest]],
    begun: Callable[[CallStream], None],
) -> Attempt:
    info = await backend.model(entity.app)
    stream = CallStream(backend, requests(entity, info), at_once=info.max_requests)
    begun(stream)
    try:
        return Attempt(entity, info, await stream.get(), stream)
    except BaseException:
        stream.close()
        raise


def too_late() -> ServeError:
    return DeadlineExceeded("timeout: the request did not finish within its deadline")


def _check_task(endpoint: Endpoint, task: Task) -> None:
    """A chat model completes raw prompts too, but needs a template to chat."""
    fits = task is endpoint.task or (task is Task.COMPLETIONS and endpoint.task is Task.CHAT)
    if not fits:
        raise InvalidField("model", f"the endpoint's task is {endpoint.task}, not {task}")


def _routing_key(endpoint: Endpoint, call: Wanted, scope: AsgiScope, context: RequestContext) -> str:
    if len(endpoint.served_entities) == 1:
        return ""
    for source in endpoint.sticky:
        key = None
        if source == "header":
            key = header(scope, ROUTING_KEY.lower().encode())
            if key is not None and len(key) > MAX_USER_CHARS:
                raise InvalidField(
                    None, f"the header {ROUTING_KEY} must hold at most {MAX_USER_CHARS} characters"
                )
        elif source == "user":
            key = call.user
        elif context.caller is not None and not context.caller.anonymous:
            key = context.caller.key_id
        if key:
            return f"{source}:{key}"
    return secrets.token_hex(8)
