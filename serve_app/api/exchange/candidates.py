"""Where a request goes: the entities that may answer it, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from serve_app.api.admission.permits import deadline_s
from serve_app.api.context import context_of
from serve_app.api.exchange.dispatch import Wanted, choose
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity


class Timed(Wanted, Protocol):
    """What of a call decides over its entity and its time."""

    @property
    def timeout_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """The entities that may answer one request."""

    entities: tuple[ServedEntity, ...]  # best first
    limit_s: float  # for the whole answer
    deadline: float  # in the event loop's time
    tries: Callable[[ServedEntity], None]  # is told of each entity that is tried


def candidates_of(
    endpoint: Endpoint, call: Timed, entity: str | None, scope: Scope, services: Services
) -> Candidates:
    """The candidates of `call`; `entity`: the one that the route names. Raises as `choose`."""
    context = context_of(scope)
    limit_s = deadline_s(call.timeout_s, services.config.request_timeout_s)
    deadline = asyncio.get_running_loop().time() + limit_s
    context.endpoint = endpoint.name
    entities = choose(endpoint, call, entity, scope, context, services.backend)

    context.entity = entities[0].name
    is_first = True

    def tries(each: ServedEntity) -> None:
        nonlocal is_first
        if not is_first and context.entity not in context.failed_over:
            context.failed_over += (context.entity,)
        is_first = False
        context.entity = each.name

    return Candidates(entities, limit_s, deadline, tries)
