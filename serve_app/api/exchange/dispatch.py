"""Finds the served entities that may answer a call, and tries them until one answers.

`endpoints.split` draws the entity, from facts that this module provides: the routing key, the entity that a
privileged caller names, and the models that can answer now. Another entity is tried only if nothing was
delivered yet.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.types import Scope as AsgiScope

from serve_app.api.admission.permits import deadline_s
from serve_app.api.backend import Backend
from serve_app.api.context import RequestContext, context_of, header
from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.guard.answers import PromptStream
from serve_app.api.protocol.dialect import PromptDelta, Target
from serve_app.api.services import Services
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
from serve_app.types import ModelInfo, Scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUTING_KEY: Final = "X-Routing-Key"
SERVED_ENTITY: Final = "X-Served-Entity"
ANSWERED_BY: Final = "served-model-name"  # header of every answer

# Failures of one entity that another entity may not have.
_FAILS_OVER: Final = (Unavailable, Overloaded, GenerationFailed)


def choose(
    endpoint: Endpoint,
    call: Target,
    entity: str | None,
    scope: AsgiScope,
    context: RequestContext,
    backend: Backend,
) -> tuple[ServedEntity, ...]:
    """The entities to try, best first. `entity` is the entity that the route names, if any.

    Raises InvalidField, ModelNotFound or VersionNotFound; raises PermissionDenied for a choice that the
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
        # A version that every entity has leaves the choice to the traffic split.
        key = _routing_key(endpoint, call, scope, context)
        return candidates(endpoint, key, is_ready)
    _check_may_choose(context, "a version of an endpoint with several")
    best_first = sorted(versions, key=lambda each: not is_ready(each))
    return tuple(best_first) if endpoint.falls_back else (best_first[0],)


def _check_may_choose(context: RequestContext, what: str) -> None:
    """Raises PermissionDenied unless the caller may bypass the traffic split."""
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
    """An entity that has begun to answer: its first deltas, and the stream of the rest."""

    entity: ServedEntity
    info: ModelInfo
    first: list[PromptDelta]
    stream: PromptStream

    @classmethod
    async def begin(cls, entity: ServedEntity, info: ModelInfo, stream: CallStream) -> Attempt:
        """Wait for the first deltas of `stream`. If that fails, closes `stream` and raises ServeError."""
        try:
            return cls(entity, info, await stream.get(), stream)
        except BaseException:
            stream.close()
            raise


@dataclass(slots=True, kw_only=True)
class Candidates:
    """The entities that may answer one request."""

    entities: Sequence[ServedEntity]  # best first
    backend: Backend
    deadline: float  # in the event loop's time
    patience_s: float  # for a model that restarts
    context: RequestContext | None = None  # records the entities that are tried
    limit_s: float = 0.0  # for the whole answer
    has_tried: bool = False

    async def first_answer(self, ask: Callable[[ServedEntity], Awaitable[T]]) -> T:
        """The answer of the first entity that can give one before the deadline.

        If none can and a model is restarting, waits for that model. Raises the ServeError of the last entity.
        """
        clock = asyncio.get_running_loop().time
        until, entities = min(self.deadline, clock() + self.patience_s), self.entities
        while True:
            try:
                return await self._first_of(entities, ask)
            except Unavailable:
                if not await self.backend.recovery([entity.app for entity in entities], until - clock()):
                    raise
            entities = sorted(entities, key=lambda entity: not self.backend.is_ready(entity.app))

    def _note(self, entity: ServedEntity) -> None:
        """Record that `entity` is tried now, because the entity tried before it, if any, has failed."""
        if self.context is None:
            return
        if self.has_tried and self.context.entity not in self.context.failed_over:
            self.context.failed_over += (self.context.entity,)
        self.has_tried, self.context.entity = True, entity.name

    async def _first_of(
        self, entities: Sequence[ServedEntity], ask: Callable[[ServedEntity], Awaitable[T]]
    ) -> T:
        for left, entity in zip(range(len(entities) - 1, -1, -1), entities, strict=True):
            self._note(entity)
            try:
                async with asyncio.timeout_at(self.deadline):
                    return await ask(entity)
            except TimeoutError:
                raise too_late() from None
            except _FAILS_OVER as error:
                if not left:
                    raise
                logger.warning("entity %s failed before it answered: %s", entity.name, type(error).__name__)
        raise Unavailable("no served entity can answer; try again", retry_after_s=2.0)


def candidates_of(
    endpoint: Endpoint, call: Target, entity: str | None, scope: AsgiScope, services: Services
) -> Candidates:
    """The candidates for `call`; `entity`: the one that the route names, if any. Same errors as `choose`."""
    context, backend, config = context_of(scope), services.backend, services.config
    limit_s = deadline_s(call.timeout_s, config.request_timeout_s)
    deadline = asyncio.get_running_loop().time() + limit_s
    context.endpoint = endpoint.name
    entities = choose(endpoint, call, entity, scope, context, backend)
    context.entity = entities[0].name
    return Candidates(
        entities=entities,
        backend=backend,
        deadline=deadline,
        patience_s=config.restart_wait_s,
        context=context,
        limit_s=limit_s,
    )


def too_late() -> ServeError:
    return DeadlineExceeded("timeout: the request did not finish within its deadline")


def _check_task(endpoint: Endpoint, task: Task) -> None:
    """A chat model can also complete raw prompts, but chatting requires a template."""
    fits = task is endpoint.task or (task is Task.COMPLETIONS and endpoint.task is Task.CHAT)
    if not fits:
        raise InvalidField("model", f"the endpoint's task is {endpoint.task}, not {task}")


def _routing_key(endpoint: Endpoint, call: Target, scope: AsgiScope, context: RequestContext) -> str:
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
