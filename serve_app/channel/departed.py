"""Counters of replicas that left.

Without it the counts of an application would fall when a replica leaves, and Prometheus would see a restart.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app.types import EngineStats

COUNTERS: Final = (  # fields of EngineStats that only grow while an engine lives
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "preemptions",
    "draft_tokens",
    "accepted_tokens",
    "computed_tokens",
)
REMEMBERED: Final = 64  # former replicas of an application that are recognised if they return


class Departed:
    """The last counts of replicas that left one application."""

    def __init__(self) -> None:
        self._by_replica: dict[str, dict[str, int]] = {}
        self._others = dict.fromkeys(COUNTERS, 0)  # of those that left longer ago

    def left(self, replica: str, stats: EngineStats) -> None:
        self._by_replica.pop(replica, None)
        self._by_replica[replica] = {name: getattr(stats, name) for name in COUNTERS}
        if len(self._by_replica) > REMEMBERED:
            oldest = self._by_replica.pop(next(iter(self._by_replica)))
            for name, count in oldest.items():
                self._others[name] += count

    def returned(self, replica: str) -> None:
        """A replica whose connection broke has returned, with its own counts."""
        self._by_replica.pop(replica, None)

    @property
    def counts(self) -> EngineStats:
        """The sums of counters; every other field is 0."""
        parts = [self._others, *self._by_replica.values()]
        sums: dict[str, Any] = {name: sum(part[name] for part in parts) for name in COUNTERS}
        return EngineStats(**sums)
