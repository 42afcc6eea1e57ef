"""What a replica tells its autoscaler: how much its engine holds, and how long prompts wait.

Made of snapshots of the engine alone. Knows no policy: `scaling.py` judges the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from serve_app.deployments.model.scaling import CACHE_USE, MAX_SEQUENCES, PROMPT_WAIT, SEQUENCES
from serve_app.types import EngineStats


class _Mark(NamedTuple):
    """What an engine had done at a time."""

    at: float
    steps: int
    tokens: int  # of prompts


class Workload:
    """Turns an engine's snapshots into a report, measuring its prompt tokens from one to the next.

    The wait for prompts is the number of their tokens, times the seconds that a prompt token took
    while prompts were waiting. It is the least that the last of them waits; what else keeps prompts
    waiting, a full batch or a full cache, is reported on its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mark: _Mark | None = None  # when prompts were first seen waiting, or measured last
        self._token_s = 0.0  # 0: not measured yet

    def report(self, stats: EngineStats) -> dict[str, float]:
        """The report of this moment: what `scaling.ByLoad` reads, by its names."""
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
