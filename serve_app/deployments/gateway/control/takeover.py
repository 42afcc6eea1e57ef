"""Puts changed endpoints into effect, each as soon as its models can answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.endpoints.endpoint import Endpoint, ServedEntity


@dataclass(frozen=True, slots=True)
class Succession:
    """The endpoints that are in effect while one catalogue replaces another."""

    endpoints: tuple[Endpoint, ...]
    waiting: dict[str, tuple[str, ...]]  # name of an endpoint that waits -> the applications it waits for


def succession(
    old: Iterable[Endpoint], new: Iterable[Endpoint], answers: Callable[[ServedEntity], bool]
) -> Succession:
    """The endpoints of `new`; an endpoint that must wait stays as it is in `old`.

    A changed endpoint waits as long as some application that would newly get traffic from it cannot answer.
    But it does not wait if none of its former entities can answer and at least one of its new entities can.
    `answers` returns whether an entity, old or new, can answer.
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


logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1  # between two checks of the awaited applications


class Takeover:
    """Puts endpoints into effect; of several endpoints with the same name, the newest wins. Unchanged
    endpoints cost nothing."""

    def __init__(
        self,
        directory: Directory,
        backend: ServeBackend,
        wait_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`wait_s`: how long a changed endpoint waits for applications that cannot answer yet.

        `on_change`: called when an endpoint that had to wait has changed.
        """
        self._on_change = on_change
        self._directory = directory
        self._backend = backend
        self._wait_s = wait_s
        self._coming: dict[
            str, tuple[Endpoint, float]
        ] = {}  # that are not in effect, and until when they wait
        self._task: asyncio.Task[None] | None = None

    def begin(self, changes: Mapping[str, Endpoint | None]) -> None:
        """Put endpoints into effect, at once or when their models can answer. None: it is gone."""
        self._directory.refused = False
        until = asyncio.get_running_loop().time() + self._wait_s
        for name, endpoint in changes.items():
            if endpoint is not None:
                self._backend.watch(endpoint)  # so that its state becomes known
            if (former := self._coming.pop(name, None)) is not None:
                self._backend.unwatch(former[0])
            if endpoint is not None:
                self._coming[name] = endpoint, until
        self._advance([name for name, endpoint in changes.items() if endpoint is None])
        if self._coming and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._follow())

    def close(self) -> None:
        """Stop; endpoints that still wait stay as they are."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while self._coming:
            await asyncio.sleep(LOOK_S)
            self._advance()

    def _advance(self, gone: list[str] | None = None) -> None:
        """Put the endpoints that are ready into effect, and remove `gone`."""
        before, now = dict(self._directory.waiting), asyncio.get_running_loop().time()
        late = {name for name, (_, until) in self._coming.items() if now >= until}
        old = [
            endpoint
            for name in self._coming.keys() - late
            if (endpoint := self._directory.named(name)) is not None
        ]
        coming = [endpoint for endpoint, _ in self._coming.values()]
        waiting = succession(old, coming, self._backend.answers).waiting
        taken: dict[str, Endpoint | None] = dict.fromkeys(gone or ())
        taken |= {endpoint.name: endpoint for endpoint in coming if endpoint.name not in waiting}
        if not taken and waiting == before:
            return
        former = [self._directory.named(name) for name in taken]
        for endpoint in taken.values():
            if endpoint is not None:
                del self._coming[endpoint.name]
                self._backend.serve(endpoint)
        self._directory.change(taken, waiting)
        for endpoint in former:
            if endpoint is not None:
                self._backend.unwatch(endpoint)
        for name in before.keys() - waiting.keys():
            if name in late:
                logger.warning(
                    "endpoint %s changes without %s: the wait is over", name, ", ".join(before[name])
                )
            else:
                logger.info("endpoint %s has changed", name)
        for name in waiting.keys() - before.keys():
            logger.info(
                "endpoint %s stays as it was until %s can answer, at most %.0f s",
                name,
                ", ".join(waiting[name]),
                self._wait_s,
            )
        if before.keys() != waiting.keys():
            self._on_change()
