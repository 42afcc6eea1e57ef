"""Chooses how many draft tokens a step takes: as many as increase the expected tokens per second.

The cost of draft rows is measured: each step with drafts is compared with recent steps that had as many
decodes but no drafts. Costs are kept by the number of rows, in powers of two: the time of a small step goes
into reading the weights, and grows in stairs. Reads no clock and sees no sequences: chances and seconds are
passed in.
"""

from __future__ import annotations

import heapq
from typing import Final

from serve_app.engine.pace import smoothed
from serve_app.engine.sequence import Forecast

# A step with drafts must promise more tokens a second by this factor, since costs are estimates.
MARGIN: Final = 1.06
# What each draft row is taken to add to a step, as a part of it, before such a step was measured.
FIRST_COST: Final = 0.03
# The weight of a new measurement, and the most by which it may exceed the present figure, as a factor: other
# work on the machine makes single steps very slow.
WEIGHT: Final = 0.2
OUTLIER: Final = 2.0
# After this many steps with drafts in a row, one runs without, to measure such a step again.
REFRESH: Final = 32
# After this many steps whose drafts were refused for their cost, the cost is measured once more.
RETRY: Final = 128
LEAST_CHANCE: Final = 0.02  # less likely draft tokens are not considered


class DraftGain:
    """The draft tokens of each step of one engine."""

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # seconds of a step without drafts, by the size of its decodes
        # (size of the decodes, size of all rows) -> the time of a step, as a multiple of one without drafts
        self._ratio: dict[tuple[int, int], float] = {}
        self._with_drafts = 0  # steps in a row
        self._refused = 0  # steps since the last one with drafts, whose drafts might have paid

    def lengths(self, decodes: int, forecasts: list[Forecast], most: int) -> list[int]:
        """How many draft tokens to take from each forecast in a step of these decodes: at most `most` in
        total."""
        none = [0] * len(forecasts)
        size = _size(decodes)
        if size not in self._plain_s or self._with_drafts >= REFRESH:
            return none
        # The likeliest tokens first. Those of one draft are in order: no chance is above the one before it.
        ranked = list(heapq.merge(*(_chances(f, i) for i, f in enumerate(forecasts)), reverse=True))[:most]
        retry = self._refused >= RETRY
        rows, tokens, best = 0, float(decodes), float(decodes) * MARGIN
        for count, (chance, _) in enumerate(ranked, start=1):
            tokens += chance
            at_edge = count == len(ranked) or _size(decodes + count + 1) != _size(decodes + count)
            if at_edge and (rate := tokens / self._cost(decodes, count, retry=retry)) > best:
                best, rows = rate, count
        if not rows:
            self._refused += bool(ranked)
            return none
        for _, index in ranked[:rows]:
            none[index] += 1
        return none

    def observe(self, decodes: int, drafted: int, seconds: float) -> None:
        """Record the time of a step with these decodes and draft rows, and no prompts."""
        if seconds <= 0.0:
            return
        size = _size(decodes)
        plain = self._plain_s.get(size)
        if not drafted:
            self._with_drafts = 0
            self._plain_s[size] = smoothed(plain, seconds, weight=WEIGHT, outlier=OUTLIER)
        elif plain is not None:
            self._with_drafts += 1
            self._refused = 0
            key = size, _size(decodes + drafted)
            self._ratio[key] = smoothed(self._ratio.get(key), seconds / plain, weight=WEIGHT, outlier=OUTLIER)

    def _cost(self, decodes: int, drafted: int, *, retry: bool) -> float:
        """The time of a step with drafts, as a multiple of the time of a step without drafts; never less than
        1."""
        first = 1.0 + FIRST_COST * drafted
        known = self._ratio.get((_size(decodes), _size(decodes + drafted)), first)
        return max(1.0, min(known, first) if retry else known)


def _chances(forecast: Forecast, index: int) -> list[tuple[float, int]]:
    """Pairs of `index` and the chance that a draft token is right and used, in the draft's order."""
    chance, chances = forecast.first, list[tuple[float, int]]()
    while len(chances) < forecast.most and chance >= LEAST_CHANCE:
        chances.append((chance, index))
        chance *= forecast.following
    return chances


def _size(rows: int) -> int:
    """1, 2, 3 to 4, 5 to 8, ... rows: the stairs in which costs are kept."""
    return (rows - 1).bit_length()
