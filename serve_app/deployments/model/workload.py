"""A replica's report for its autoscaler: how full its engine is, and how long prompts wait.

Made only from snapshots of the engine. Depends on no policy: `scaling.py` evaluates the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from serve_app.deployments.model.scaling import CACHE_USE, MAX_SEQUENCES, PROMPT_WAIT, SEQUENCES
from serve_app.types import EngineStats


class _Mark(NamedTuple):
    """The work that an engine had done up to some moment."""

    at: float
    steps: int
    tokens: int  # of prompts


class Workload:
    """Turns an engine's snapshots into a report; counts the prompt tokens computed between two snapshots.

    The wait for prompts is the number of waiting prompt tokens times the seconds per prompt token, which is
    measured while prompts wait. This product is a lower bound of the last prompt's wait. A full batch and a
    full cache also make prompts wait; both are reported separately.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mark: _Mark | None = None  # when prompts were first seen waiting, or measured last
        self._token_s = 0.0  # 0: not measured yet

    def report(self, stats: EngineStats) -> dict[str, float]:
        """The report at this moment, with the field names that `scaling.ByLoad` reads."""
        self._measure(stats)
        return {
            SEQUENCES: float(stats.running + stats.waiting),
            MAX_SEQUENCES: float(stats.max_sequences),
            CACHE_USE: stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0,
            PROMPT_WAIT: stats.waiting_tokens * self._token_s,
        }

    def _measure(self, stats: EngineStats) -> None:
        now = self._clock()
        if not stats.waiting_tokens:
            self._mark = None
        elif self._mark is None:
            self._mark = _Mark(now, stats.steps, stats.computed_tokens)
        elif stats.steps > self._mark.steps:  # a long step may not have ended yet
            tokens = stats.computed_tokens - self._mark.tokens
            if tokens:  # else nothing was computed of any prompt: they wait for places or for blocks
                self._token_s = (now - self._mark.at) / tokens
            self._mark = _Mark(now, stats.steps, stats.computed_tokens)
