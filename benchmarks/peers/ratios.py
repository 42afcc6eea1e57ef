"""Ratios of paired figures and how sure they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
SEED: Final = 20_26


class Ratio(NamedTuple):
    """A geometric mean of ratios with its bootstrap interval, over `pairs` rounds."""

    mean: float
    low: float
    high: float
    pairs: int


def paired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Ratio | None:
    """`ours` over `theirs`, paired by round; rounds that only one of them has are left out.

    The mean is that of the logarithms of the ratios. The interval holds the middle 95 % of the means
    of 10,000 resamples of the pairs, drawn with replacement from a fixed seed.
    """
    rounds = sorted(ours.keys() & theirs.keys())
    if not rounds:
        return None
    logs = np.array([math.log(ours[number] / theirs[number]) for number in rounds])
    drawn = np.random.default_rng(SEED).integers(len(logs), size=(RESAMPLES, len(logs)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(logs[drawn].mean(axis=1), [tail, 1 - tail])
    return Ratio(math.exp(logs.mean()), math.exp(low), math.exp(high), len(rounds))


def best(figures: Mapping[str, Sequence[float]], *, highest: bool) -> str | None:
    """The server whose median is the highest, or the lowest; None where no server has a figure."""
    medians = {server: float(np.median(values)) for server, values in figures.items() if len(values)}
    if not medians:
        return None
    return (max if highest else min)(medians, key=medians.__getitem__)
