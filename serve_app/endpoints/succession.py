"""The change from one catalogue to the next, so that no endpoint is without an answer meanwhile.

Pure logic: no clock, no Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from serve_app.endpoints.endpoint import Endpoint, ServedEntity


@dataclass(frozen=True, slots=True)
class Succession:
    """The endpoints in effect while one catalogue replaces another."""

    endpoints: tuple[Endpoint, ...]
    waiting: dict[str, tuple[str, ...]]  # name of an endpoint that waits -> the applications it waits for


def succession(
    old: Iterable[Endpoint], new: Iterable[Endpoint], answers: Callable[[ServedEntity], bool]
) -> Succession:
    """The endpoints of `new`; an endpoint that must wait stays as it is in `old`.

    A changed endpoint waits while an application that is new to its traffic cannot answer. It does not wait
    if none of its former entities can answer and one of its new entities can. `answers` says whether an
    entity, old or new, can answer.
    """
    former = {endpoint.name: endpoint for endpoint in old}
    taken: list[Endpoint] = []
    waiting: dict[str, tuple[str, ...]] = {}
    for endpoint in new:
        before = former.get(endpoint.name)
        awaited = () if before is None else _awaited(before, endpoint, answers)
        if (
            before is not None
            and awaited
            and (any(map(answers, before.reachable)) or not any(map(answers, endpoint.reachable)))
        ):
            waiting[endpoint.name] = awaited
            taken.append(before)
        else:
            taken.append(endpoint)
    return Succession(tuple(taken), waiting)


def _awaited(
    before: Endpoint, endpoint: Endpoint, answers: Callable[[ServedEntity], bool]
) -> tuple[str, ...]:
    known = {(entity.app, entity.model, entity.version) for entity in before.weighted}
    return tuple(
        entity.app
        for entity in endpoint.weighted
        if (entity.app, entity.model, entity.version) not in known and not answers(entity)
    )
