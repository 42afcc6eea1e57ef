"""Noise: a pure function of (seed, index, position), uniform and independent in each."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.sampling.noise import uniform

PINNED = (0.10573847201284658, 0.9255302063985411)
KEYS = st.integers(0, 2**64 - 1), st.integers(0, 127), st.integers(0, 2**31)


def chi_square(counts: list[int]) -> float:
    """The statistic against equal shares, as standard deviations from its mean."""
    expected = sum(counts) / len(counts)
    freedom = len(counts) - 1
    return (sum((c - expected) ** 2 / expected for c in counts) - freedom) / math.sqrt(2 * freedom)


STREAMS = {
    "positions": lambda i: uniform(7, 0, i),
    "indices": lambda i: uniform(7, i, 0),
    "seeds": lambda i: uniform(i, 0, 0),
    "seeds_far_apart": lambda i: uniform(2**64 - 1 - i * 2**40, 3, 5),
}


@given(*KEYS)
def test_lies_in_the_unit_interval_and_repeats(seed: int, index: int, position: int) -> None:
    assert 0.0 <= uniform(seed, index, position) < 1.0
    assert uniform(seed, index, position) == uniform(seed, index, position)


def test_values_are_fixed_for_ever() -> None:
    assert uniform(0, 0, 0) == pytest.approx(PINNED[0], abs=0)
    assert uniform(2**64 - 1, 127, 10**6) == pytest.approx(PINNED[1], abs=0)


@pytest.mark.parametrize("name", STREAMS)
def test_is_uniform_along_every_coordinate(name: str) -> None:
    counts = [0] * 100
    for i in range(20_000):
        counts[int(STREAMS[name](i) * 100)] += 1
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("name", STREAMS)
def test_neighbours_are_independent_along_every_coordinate(name: str, lag: int) -> None:
    counts = [0] * 100
    for i in range(20_000):
        cell = int(STREAMS[name](i) * 10) * 10 + int(STREAMS[name](i + lag) * 10)
        counts[cell] += 1
    assert abs(chi_square(counts)) < 4


def test_siblings_and_near_seeds_share_no_number() -> None:
    seen = {uniform(s, i, p) for s in range(20) for i in range(20) for p in range(50)}
    assert len(seen) == 20 * 20 * 50


def test_every_bit_of_the_seed_matters() -> None:
    assert len({uniform(0, 0, 0)} | {uniform(1 << bit, 0, 0) for bit in range(64)}) == 65
