"""Fine buckets: the coarse ones are among them, and quantiles are near the truth."""

from __future__ import annotations

import math
import random

import pytest

from serve_app.live.latencies import (
    FINE,
    FINE_LONG,
    FINE_SHORT,
    LONG,
    SHORT,
    LatencyCounts,
    fine,
    quantile,
    since,
)


@pytest.mark.parametrize(("bounds", "finer"), [(LONG, FINE_LONG), (SHORT, FINE_SHORT)])
def test_every_coarse_bound_is_a_fine_one(bounds: tuple[float, ...], finer: tuple[float, ...]) -> None:
    assert finer[FINE - 1 :: FINE] == bounds
    assert list(finer) == sorted(set(finer))
    assert len(finer) == FINE * len(bounds)


def test_coarse_counts_are_those_of_a_plain_count() -> None:
    draw = random.Random(1)
    values = [draw.expovariate(20) for _ in range(2000)] + [0.0, 10.0, 11.0, 0.02]
    counts = LatencyCounts(FINE_SHORT)
    for value in values:
        counts.observe(value)
    assert counts.coarse() == [sum(value <= bound for value in values) for bound in (*SHORT, math.inf)]
    assert counts.seconds == pytest.approx(sum(values))


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("mean", [0.004, 0.022, 0.028, 0.3])
def test_a_quantile_is_within_a_fifth_of_the_truth(share: float, mean: float) -> None:
    draw = random.Random(round(1000 * mean))
    values = sorted(draw.lognormvariate(math.log(mean), 0.3) for _ in range(3000))
    counts = LatencyCounts(FINE_SHORT)
    for value in values:
        counts.observe(value)
    truth = values[math.ceil(share * len(values)) - 1]
    found = quantile(share, since(counts.counts, ()), FINE_SHORT)
    assert found == pytest.approx(truth, rel=0.2)


def test_two_models_whose_steps_differ_by_a_quarter_can_be_told_apart() -> None:
    medians = []
    for step in (0.022, 0.0275):
        counts = LatencyCounts(FINE_SHORT)
        for _ in range(100):
            counts.observe(step)
        medians.append(quantile(0.5, since(counts.counts, ()), FINE_SHORT) or 0.0)
    assert medians[0] * 1.1 < medians[1]


def test_there_is_no_quantile_of_nothing_and_none_beyond_the_last_bound() -> None:
    assert quantile(0.5, {}, FINE_LONG) is None
    assert quantile(0.5, {len(FINE_LONG): 3}, FINE_LONG) == LONG[-1]
    assert quantile(1.0, {0: 1}, fine((1.0,))) == 1 / FINE


def test_what_is_new_is_told_by_bucket() -> None:
    assert since([0, 3, 1], [0, 1, 1]) == {1: 2}
    assert since([0, 3, 1], ()) == {1: 3, 2: 1}
    assert since([4], [4]) == {}
