"""Rates and latencies computed from slots: over a window, and as series with one point per slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from serve_app.live.latencies import FINE_LONG, FINE_SHORT, quantile
from serve_app.live.ring import total
from serve_app.types.control.live import SLOT_S, EntityCounts, LiveSlot, ReplicaLoad

SHARES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles in seconds; None if nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of an endpoint or an entity over some time."""

    requests_per_s: float
    errors_per_s: float
    refused_per_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float  # generated
    in_flight: int  # at the end
    first_token_s: Latency
    inter_token_s: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one application's replicas at the end of a slot."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0

    @property
    def kv_use(self) -> float | None:
        """The share of the KV cache's blocks that sequences use; None if unknown."""
        return self.blocks_used / self.blocks_total if self.blocks_total else None


def _latency(buckets: Mapping[int, int], bounds: Sequence[float]) -> Latency:
    p50, p95, p99 = (quantile(share, buckets, bounds) for share in SHARES)
    return Latency(p50=p50, p95=p95, p99=p99)


def figures(counts: EntityCounts, seconds: float) -> Figures:
    """The figures of `counts`, which were counted in `seconds`."""
    return Figures(
        requests_per_s=counts.requests / seconds,
        errors_per_s=counts.errors / seconds,
        refused_per_s=counts.refused / seconds,
        prompt_tokens_per_s=counts.prompt_tokens / seconds,
        tokens_per_s=counts.completion_tokens / seconds,
        in_flight=counts.in_flight,
        first_token_s=_latency(counts.first_token, FINE_LONG),
        inter_token_s=_latency(counts.inter_token, FINE_SHORT),
    )


NOTHING: Final = figures(EntityCounts(endpoint="", entity=""), SLOT_S)


class History:
    """The slots of one answer of the live API, as windows and series."""

    def __init__(self, slots: Iterable[LiveSlot], newest: int) -> None:
        """`newest`: the number of the last slot to include; newer slots are left out."""
        self._newest = newest
        self._counts: dict[tuple[str, str], dict[int, EntityCounts]] = {}
        self._loads: dict[str, dict[int, Load]] = {}
        for slot in slots:
            if slot.number <= newest:
                self._take(slot)

    @property
    def entities(self) -> tuple[tuple[str, str], ...]:
        """The endpoint and entity of everything that was active."""
        return tuple(self._counts)

    def window(self, entities: Iterable[tuple[str, str]], seconds: float) -> Figures:
        """All these entities together, over the last `seconds`."""
        num_slots = max(1, round(seconds / SLOT_S))
        first = self._newest - num_slots + 1
        parts: list[EntityCounts] = []
        in_flight = 0
        for key in entities:
            by_slot = self._counts.get(key, {})
            parts += [counts for number, counts in by_slot.items() if number >= first]
            in_flight += by_slot[self._newest].in_flight if self._newest in by_slot else 0
        return figures(replace(total("", "", parts), in_flight=in_flight), num_slots * SLOT_S)

    def series(self, entities: Sequence[tuple[str, str]], numbers: Iterable[int]) -> list[Figures]:
        """All these entities together, slot by slot."""
        return [self._at(entities, number) for number in numbers]

    def loads(self, app: str, numbers: Iterable[int]) -> list[Load]:
        """An application, slot by slot."""
        found = self._loads.get(app, {})
        return [found.get(number, Load()) for number in numbers]

    def load(self, app: str) -> Load | None:
        """An application at the end of the newest slot; None if it was idle."""
        return self._loads.get(app, {}).get(self._newest)

    def _at(self, entities: Iterable[tuple[str, str]], number: int) -> Figures:
        found = [by_slot[number] for key in entities if number in (by_slot := self._counts.get(key, {}))]
        if not found:  # as in most slots of most entities
            return NOTHING
        return figures(found[0] if len(found) == 1 else total("", "", found), SLOT_S)

    def _take(self, slot: LiveSlot) -> None:
        for counts in slot.entities:
            self._counts.setdefault((counts.endpoint, counts.entity), {})[slot.number] = counts
        for app, load in _by_app(slot.replicas.values()).items():
            self._loads.setdefault(app, {})[slot.number] = load


def _by_app(replicas: Iterable[ReplicaLoad]) -> dict[str, Load]:
    found: dict[str, Load] = {}
    for each in replicas:
        before = found.get(each.app, Load())
        found[each.app] = Load(
            running=before.running + each.running,
            waiting=before.waiting + each.waiting,
            blocks_total=before.blocks_total + each.blocks_total,
            blocks_used=before.blocks_used + each.blocks_used,
        )
    return found
