"""This gateway's live figures, in slots of two seconds. No timer runs while the gateway is idle.

A timer runs from the first request to the end of the first slot in which nothing happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from serve_app.api.admission.under_way import TokenCounts, UnderWay
from serve_app.api.backend import Backend
from serve_app.live.latencies import LatencyCounts, since
from serve_app.live.ring import Ring, slot_at
from serve_app.telemetry import AnswerCounts, EntityName, Metrics
from serve_app.types import EngineStats
from serve_app.types.control.live import SLOT_S, EntityCounts, LiveSlot, ReplicaLoad

EARLY_S: Final = 0.05  # a timer may fire this much before its time by the clock


class Pulse:
    """The slots of one gateway. To be used from one event loop only."""

    def __init__(
        self,
        metrics: Metrics,
        under_way: UnderWay,
        backend: Backend,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: Unix seconds."""
        self._metrics = metrics
        self._under_way = under_way
        self._backend = backend
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._answered: dict[EntityName, AnswerCounts] = {}  # at the end of the last slot
        self._first_token: dict[tuple[str, ...], list[int]] = {}
        self._inter_token: dict[tuple[str, ...], list[int]] = {}
        self.slots = Ring(clock)
        metrics.on_ended = self._forget
        self.on_slot: Callable[[], None] = lambda: None  # called when `slots` has a new one

    def wake(self) -> None:
        """Start the timer, unless it runs. To be called on the event loop as soon as something happens."""
        if self._timer is None:
            self._set_timer()

    @property
    def is_awake(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def sample(self) -> LiveSlot:
        """The counts since the last call, as the slot that has just ended."""
        return LiveSlot(
            number=slot_at(self._clock() + EARLY_S) - 1,
            entities=tuple(self._entities()),
            replicas=_busy(self._backend.replicas()),
        )

    def _forget(self, who: EntityName) -> None:
        """Forget an entity whose series has ended. If the entity comes back, its counts start at 0."""
        for before in (self._answered, self._first_token, self._inter_token):
            before.pop(who, None)

    def _set_timer(self) -> None:
        left_s = SLOT_S - (self._clock() + EARLY_S) % SLOT_S
        self._timer = asyncio.get_running_loop().call_later(left_s + EARLY_S, self._end_slot)

    def _end_slot(self) -> None:
        self._timer = None
        slot = self.sample()
        if slot.is_empty:
            return
        self._set_timer()
        self.slots.add(slot)
        self.on_slot()

    def _entities(self) -> Iterator[EntityCounts]:
        used, in_flight = self._under_way.take(), self._under_way.in_flight()
        answered = dict(self._metrics.answered)
        first = _new(self._metrics.first_token, self._first_token)
        inter = _new(self._metrics.inter_token, self._inter_token)
        ended = {who: counts for who, counts in answered.items() if counts is not self._answered.get(who)}
        for who in dict.fromkeys((*ended, *used, *in_flight, *first, *inter)):
            now, then = (each.get(who, AnswerCounts()) for each in (answered, self._answered))
            tokens = used.get(who, TokenCounts())
            yield EntityCounts(
                endpoint=who[0],
                entity=who[1],
                requests=now.answers - then.answers,
                errors=now.errors - then.errors,
                refused=now.refused - then.refused,
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.generated,
                in_flight=in_flight[who],
                first_token=first.get(who, {}),
                inter_token=inter.get(who, {}),
            )
        self._answered = answered


def _new(
    counts: Mapping[tuple[str, ...], LatencyCounts], before: dict[tuple[str, ...], list[int]]
) -> dict[EntityName, dict[int, int]]:
    """The increase of `counts` since `before`. Updates `before` to `counts`."""
    found = {}
    for labels, each in counts.items():
        endpoint, entity = labels
        if more := since(each.counts, before.get(labels, ())):
            found[endpoint, entity] = more
            before[labels] = each.counts.copy()
    return found


def _busy(apps: Mapping[str, Mapping[str, EngineStats]]) -> dict[str, ReplicaLoad]:
    """The replicas that are not idle."""
    return {
        replica: ReplicaLoad(
            app=app,
            running=stats.running,
            waiting=stats.waiting,
            blocks_total=stats.blocks_total,
            blocks_used=stats.blocks_used,
        )
        for app, replicas in apps.items()
        for replica, stats in replicas.items()
        if stats.running or stats.waiting or stats.blocks_used
    }
