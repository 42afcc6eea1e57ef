"""From one catalogue to the next without an endpoint that nobody answers. Pure: no clock, no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from serve_app.endpoints.endpoint import Endpoint, ServedEntity


@dataclass(frozen=True, slots=True)
class Succession:
    """What is in effect while one catalogue replaces another."""

    endpoints: tuple[Endpoint, ...]
    waiting: dict[str, tuple[str, ...]]  # endpoints that are still the former ones -> applications they await


def succession(
    old: Iterable[Endpoint], new: Iterable[Endpoint], answers: Callable[[ServedEntity], bool]
) -> Succession:
    """`new`, but for each endpoint that must wait, which stays as it is in `old`.

    An endpoint waits while an application that it would send traffic to, and did not before,
    cannot answer; unless only others of the new endpoint can, and nobody of the former one.
    `answers` tells of an entity, be it old or new, whether it can.
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
