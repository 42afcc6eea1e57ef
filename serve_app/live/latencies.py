"""Latencies counted in buckets that are fine enough to tell two models apart, and quantiles of the counts.

Prometheus gets coarse buckets. Each is cut into FINE fine buckets, so one count serves both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

FINE: Final = 8  # fine buckets in a coarse one; the widest spans a factor of 1.19

LONG: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)


def fine(bounds: Sequence[float]) -> tuple[float, ...]:
    """`bounds`, ascending and above 0, with FINE - 1 more bounds before each.

    They are evenly spaced in the first bucket, and spaced by a constant ratio in the others. `bounds[i]`
    itself has the index `FINE * (i + 1) - 1`.
    """
    first = [bounds[0] * step / FINE for step in range(1, FINE)]
    found = [*first, bounds[0]]
    for low, high in pairwise(bounds):
        found += [low * (high / low) ** (step / FINE) for step in range(1, FINE)]
        found.append(high)
    return tuple(found)


FINE_LONG: Final = fine(LONG)
FINE_SHORT: Final = fine(SHORT)


class LatencyCounts:
    """How many latencies fell into each fine bucket. Not thread-safe: for a single event loop."""

    __slots__ = ("_bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the fine bounds, in seconds; each is the largest value of its bucket."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: beyond all bounds
        self.seconds = 0.0  # of all together

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def coarse(self) -> list[int]:
        """The number of latencies up to each coarse bound, and the total number."""
        sums = list(accumulate(self.counts))
        return [*sums[FINE - 1 :: FINE], sums[-1]]


def since(counts: Sequence[int], before: Sequence[int]) -> dict[int, int]:
    """The increase of `counts` over `before`: bucket -> number. `before` may be empty."""
    if not before:
        return {bucket: count for bucket, count in enumerate(counts) if count}
    pairs = enumerate(zip(counts, before, strict=True))
    return {bucket: now - then for bucket, (now, then) in pairs if now != then}


def quantile(share: float, buckets: Mapping[int, int], bounds: Sequence[float]) -> float | None:
    """Roughly the latency, in seconds, that a `share` of all do not exceed; None: there are no latencies.

    Within a bucket, latencies count as evenly spread. Latencies beyond the last bound count as that bound.
    """
    total = sum(buckets.values())
    if not total:
        return None
    rank, seen = share * total, 0
    for bucket in sorted(buckets):
        count = buckets[bucket]
        if seen + count >= rank:
            if bucket >= len(bounds):
                break
            low = bounds[bucket - 1] if bucket else 0.0
            return low + (bounds[bucket] - low) * (rank - seen) / count
        seen += count
    return bounds[-1]
