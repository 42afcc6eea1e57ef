"""Token buckets: budgets that fill steadily, hold at most their capacity, and may be in debt.

Deals with draws and time, not with keys, endpoints, requests or callers. It is not thread-safe and never
waits. While a bucket's settings do not change, claims take at most `capacity + t * per_second` of it in any t
seconds, plus the amounts given back.

Memory: full buckets are dropped, because the next draw has all the settings needed to make them again.
At most `max(1024, 2 * n)` buckets are kept, where n is the number that were not full at the last cleanup. A
bucket without debt fills within `capacity / per_second` seconds of its last draw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from serve_app.types import Budget, Draw, Verdict

LARGEST: Final = 1e15  # for amount, capacity and rate: float64 counts exactly up to it
SLOWEST: Final = 1e-9  # per second; one in thirty years
SWEEP_AT: Final = 1_024  # buckets; fewer are not worth a cleanup
CLOCK_S: Final = 1e-6  # added to a wait, so that it suffices on a float64 clock that ran for years


@dataclass(slots=True)
class _Bucket:
    capacity: float
    per_second: float
    level: float  # <= capacity; below zero is a debt
    at: float  # when the bucket had this `level`, on the clock

    def fill(self, now: float) -> None:
        elapsed = max(0.0, now - self.at)
        self.level = min(self.capacity, self.level + elapsed * self.per_second)
        self.at = now

    def resize(self, capacity: float, per_second: float) -> None:
        """Set a new capacity and rate. The filled share stays the same: a full bucket remains full."""
        if capacity != self.capacity:
            share = self.level / self.capacity if self.capacity else 1.0
            self.capacity, self.level = capacity, share * capacity
        self.per_second = per_second

    def wait(self, amount: float) -> float:
        """Seconds until `amount` can be taken: 0 means now, infinity means never."""
        if amount > self.capacity:
            return math.inf
        if amount <= self.level:
            return 0.0
        return (amount - self.level) / self.per_second + CLOCK_S

    def budget(self, unit: str) -> Budget:
        return Budget(
            unit=unit,
            limit=math.floor(self.capacity),
            remaining=max(0, math.floor(self.level)),
            reset_s=(self.capacity - self.level) / self.per_second,
        )


class Buckets:
    """All buckets of a cluster, by name. A bucket is created, and is full, at the first draw from it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds and should never go back; if it does, no bucket fills meanwhile."""
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = SWEEP_AT

    def __len__(self) -> int:
        """The number of buckets that are kept now."""
        return len(self._buckets)

    def claim(self, draws: Sequence[Draw]) -> Verdict:
        """Take all of `draws`, or nothing; several draws from one bucket add up.

        A refusal names the unit with the longest wait, and that wait: the wait is None if a draw is larger
        than its bucket. Raises ValueError for a draw that `check` refuses.
        """
        for draw in draws:
            check(draw)
        buckets = self._filled(draws)
        wanted: dict[str, float] = {}
        for draw in draws:
            wanted[draw.bucket] = wanted.get(draw.bucket, 0.0) + draw.amount
        waits = [bucket.wait(wanted[draw.bucket]) for bucket, draw in zip(buckets, draws, strict=True)]
        longest = max(waits, default=0.0)
        if longest == 0.0:
            for bucket, draw in zip(buckets, draws, strict=True):
                bucket.level -= draw.amount
        return Verdict(
            granted=longest == 0.0,
            budgets=tuple(b.budget(d.unit) for b, d in zip(buckets, draws, strict=True)),
            retry_after_s=longest if 0.0 < longest < math.inf else None,
            refused=draws[waits.index(longest)].unit if longest else None,
            refused_draw=waits.index(longest) if longest else None,
        )

    def settle(self, draws: Iterable[Draw]) -> None:
        """Take `amount` more from each bucket, going into debt if need be; a negative amount is given back.

        No bucket rises above its capacity. Raises ValueError as `claim` does, before any change.
        """
        draws = tuple(draws)
        for draw in draws:
            check(draw, signed=True)
        for bucket, draw in zip(self._filled(draws), draws, strict=True):
            bucket.level = min(bucket.capacity, bucket.level - draw.amount)

    def _filled(self, draws: Sequence[Draw]) -> list[_Bucket]:
        """The bucket of each draw, as it stands now."""
        now = self._clock()
        if len(self._buckets) >= self._sweep_at:
            self._sweep(now)
        found: list[_Bucket] = []
        for draw in draws:
            bucket = self._buckets.get(draw.bucket)
            if bucket is None:
                level = draw.capacity if draw.level is None else min(draw.capacity, draw.level)
                bucket = _Bucket(draw.capacity, draw.per_second, level=level, at=now)
                self._buckets[draw.bucket] = bucket
            else:
                bucket.fill(now)
                bucket.resize(draw.capacity, draw.per_second)
            found.append(bucket)
        return found

    def _sweep(self, now: float) -> None:
        for bucket in self._buckets.values():
            bucket.fill(now)
        self._buckets = {name: b for name, b in self._buckets.items() if b.level < b.capacity}
        self._sweep_at = max(SWEEP_AT, 2 * len(self._buckets))


def check(draw: Draw, *, signed: bool = False) -> None:
    """Raises a ValueError that names the field if a number is out of the range for buckets.

    `signed`: the draw is a settlement, whose amount may be negative.
    """
    lowest = -LARGEST if signed else 0.0
    if not lowest <= draw.amount <= LARGEST:
        raise ValueError(f"amount must be {lowest:g} to {LARGEST:g}, not {draw.amount}")
    if not 0.0 <= draw.capacity <= LARGEST:
        raise ValueError(f"capacity must be 0 to {LARGEST:g}, not {draw.capacity}")
    if not SLOWEST <= draw.per_second <= LARGEST:
        raise ValueError(f"per_second must be {SLOWEST:g} to {LARGEST:g}, not {draw.per_second}")


def returned(draws: Iterable[Draw]) -> list[Draw]:
    """The settlement that gives granted claims back and closes them."""
    return [replace(draw, amount=-draw.amount, released=draw.amount) for draw in draws]


def add(sums: dict[str, Draw], draws: Iterable[Draw]) -> None:
    """Add the settlements `draws` to `sums`, which has one sum per bucket, keyed by the bucket's name."""
    for draw in draws:
        before = sums.get(draw.bucket)
        if before is not None:
            draw = replace(draw, amount=before.amount + draw.amount, released=before.released + draw.released)
        sums[draw.bucket] = draw
