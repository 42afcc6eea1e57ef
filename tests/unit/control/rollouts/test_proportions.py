"""Intervals and tests of shares: exact, and valid however often they are looked at."""

import math
import random

import pytest

from serve_app.control.rollouts.proportions import (
    Share,
    difference_estimate,
    evidence_against,
    evidence_of_difference,
    p_value,
    share_estimate,
    share_interval,
)

ALPHA = 0.05


def ever_misses(p: float, num: int, rng: random.Random) -> bool:
    """Whether the interval misses the true share `p` after any of `num` requests."""
    hits = 0
    for count in range(1, num + 1):
        hits += rng.random() < p
        if evidence_against(Share(hits, count), p) >= math.log(1 / ALPHA):
            return True
    return False


def first_difference(p: float, q: float, share: float, num: int, rng: random.Random) -> int | None:
    """After how many requests two entities differ significantly; looked at after every tenth."""
    counts = [[0, 0], [0, 0]]
    for count in range(1, num + 1):
        entity = counts[0] if rng.random() < share else counts[1]
        entity[0] += rng.random() < (p if entity is counts[0] else q)
        entity[1] += 1
        if count % 10 == 0 and p_value(*(Share(*each) for each in counts)) <= ALPHA:
            return count
    return None


def test_without_requests_everything_is_possible() -> None:
    assert share_interval(Share(0, 0), ALPHA) == (0.0, 1.0)
    assert difference_estimate(Share(0, 0), Share(1, 2), ALPHA).mean is None
    assert p_value(Share(0, 0), Share(1, 2)) == 1.0


def test_an_interval_is_where_the_evidence_is_too_weak() -> None:
    share = Share(7, 90)
    low, high = share_interval(share, ALPHA)
    assert 0 < low < 7 / 90 < high < 1
    assert evidence_against(share, low) == pytest.approx(math.log(20), abs=1e-6)
    assert evidence_against(share, high) == pytest.approx(math.log(20), abs=1e-6)
    assert share_estimate(share, ALPHA).mean == 7 / 90


@pytest.mark.parametrize(("hits", "count"), [(0, 30), (30, 30)])
def test_a_share_that_was_never_or_always_hit_has_an_interval(hits: int, count: int) -> None:
    low, high = share_interval(Share(hits, count), ALPHA)
    assert (low == 0.0 and 0 < high < 0.2) if hits == 0 else (high == 1.0 and 0.8 < low < 1)


def test_a_difference_has_the_interval_that_its_test_has() -> None:
    share, against = Share(40, 200), Share(10, 200)
    found = difference_estimate(share, against, ALPHA)
    assert found.low is not None
    assert found.high is not None
    assert found.mean == pytest.approx(0.15)
    assert 0 < found.low < 0.15 < found.high  # zero is outside,
    assert p_value(share, against) < ALPHA  # and the test says so too
    assert evidence_of_difference(share, against, found.low) == pytest.approx(math.log(20), abs=1e-5)
    assert p_value(share, share) == 1.0
    swapped = difference_estimate(against, share, ALPHA)
    assert swapped.low == pytest.approx(-found.high, abs=1e-9)


@pytest.mark.parametrize("p", [0.002, 0.05, 0.5])
def test_an_interval_misses_at_most_alpha_of_the_time_under_continuous_peeking(p: float) -> None:
    rng = random.Random(int(p * 1000))
    missed = sum(ever_misses(p, 600, rng) for _ in range(150))
    # 5 % of 150 are 7.5; more than 16 happen once in 600 times where alpha is just kept.
    assert missed <= 16


@pytest.mark.parametrize("p", [0.01, 0.3])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_equal_entities_differ_at_most_alpha_of_the_time_under_continuous_peeking(
    p: float, share: float
) -> None:
    rng = random.Random(int(1000 * p + 100 * share))
    found = [first_difference(p, p, share, 1000, rng) for _ in range(40)]
    assert sum(count is not None for count in found) <= 6  # 2 expected; more happen once in 100 times


@pytest.mark.full
@pytest.mark.parametrize("p", [0.001, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("share", [0.5, 0.25, 0.05])
def test_equal_entities_differ_at_most_alpha_of_the_time_in_full(p: float, share: float) -> None:
    rng = random.Random(int(10_000 * p + 100 * share))
    found = [first_difference(p, p, share, 10_000, rng) for _ in range(200)]
    assert sum(count is not None for count in found) <= 20


def test_power_grows_with_the_number_of_requests_and_with_the_difference() -> None:
    rng = random.Random(3)
    needed = sorted(first_difference(0.2, 0.02, 0.5, 600, rng) or 601 for _ in range(30))
    found = [sum(each <= num for each in needed) for num in (50, 150, 600)]
    assert found[0] < found[1] < found[2] == 30
    assert sorted(first_difference(0.5, 0.02, 0.5, 600, rng) or 601 for _ in range(30))[15] < needed[15]
