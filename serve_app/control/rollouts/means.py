"""Means of latencies, tokens and ratings: intervals and tests that may be looked at after every request.

They are asymptotic: they hold for many requests, so there are none for fewer than MIN_COUNT requests.
Requests count as independent. Uses no database.

An estimate D of variance V is compared with its mixture over a normal distribution of variance T,

    L(d) = sqrt(V / (V + T)) exp(T (D - d)^2 / (2 V (V + T))),

and its interval is all d with L(d) < 1 / alpha:

    D +- sqrt(2 V (V + T) / T * log(sqrt((V + T) / V) / alpha)).

For one mean of variance s^2, V = s^2 / n: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha,
Kennedy and Ramdas (2024, "Time-uniform central limit theory and asymptotic confidence sequences"). For the
difference of two means, V = a^2 / n + b^2 / m: the mixture sequential probability ratio test of Johari,
Koomen, Pekelis and Walsh (2022, "Always valid inference: continuous monitoring of A/B tests").

Both take the variance as known. Skewed values, as latencies are, make an early sample variance too small,
even more so when compared with a larger sample. So variances are raised by SKEW / sqrt(n), and in a
difference neither variance is taken to be smaller than the variance of all values together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from serve_app.types.control import Estimate

MIN_COUNT: Final = 100
BEST_COUNT: Final = 1000  # the number of requests for which intervals are made narrowest
SKEW: Final = 4.0


@dataclass(frozen=True, slots=True)
class Moments:
    """The sums from which a mean and its variance are computed."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0  # sum of the squared values

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def variance(self) -> float:
        """The sample variance; 0 for fewer than two values."""
        if self.count < 2:
            return 0.0
        return max(0.0, self.squares - self.total * self.total / self.count) / (self.count - 1)

    @property
    def cautious_variance(self) -> float:
        """The variance, raised because a small sample of skewed values understates it."""
        return self.variance * (1 + SKEW / math.sqrt(self.count)) if self.count else 0.0


def mean_estimate(values: Moments, alpha: float) -> Estimate:
    """The mean; its interval is None if there are fewer than MIN_COUNT values or all values are equal."""
    variance = values.cautious_variance
    if values.count < MIN_COUNT or variance == 0:
        return Estimate(count=values.count, mean=values.mean, low=None, high=None)
    return _estimate(values.count, values.total / values.count, variance / values.count, variance, alpha)


def difference_estimate(values: Moments, against: Moments, alpha: float) -> Estimate:
    """The mean of `values` minus the mean of `against`; its interval may be None, see `mean_estimate`."""
    mean = None if values.mean is None or against.mean is None else values.mean - against.mean
    count = values.count + against.count
    spread = _spread(values, against)
    if mean is None or spread is None:
        return Estimate(count=count, mean=mean, low=None, high=None)
    return _estimate(count, mean, *spread, alpha)


def p_value(values: Moments, against: Moments, alpha: float) -> float:
    """An always-valid p-value of "both true means are equal"; 1 while there is no interval.

    `alpha` is the level at which the test is most powerful. The p-value is valid at every level.
    """
    spread = _spread(values, against)
    if values.mean is None or against.mean is None or spread is None:
        return 1.0
    variance, of_one = spread
    mixed = _mixture(of_one, alpha)
    distance = values.mean - against.mean
    evidence = mixed * distance**2 / (2 * variance * (variance + mixed)) - 0.5 * math.log1p(mixed / variance)
    return min(1.0, math.exp(-evidence))


def _spread(values: Moments, against: Moments) -> tuple[float, float] | None:
    """The variance of the difference of the means, and of a pair of values; None if not known yet."""
    if min(values.count, against.count) < MIN_COUNT:
        return None
    together = (values + against).variance
    one, other = (max(each.cautious_variance, together) for each in (values, against))
    if one + other == 0:
        return None
    return one / values.count + other / against.count, one + other


def _mixture(variance: float, alpha: float) -> float:
    """The T that makes an interval narrowest at BEST_COUNT values of this variance."""
    doubled = -2 * math.log(alpha)
    return variance / BEST_COUNT * (doubled + math.log(doubled + 1))


def _estimate(count: int, mean: float, variance: float, of_one: float, alpha: float) -> Estimate:
    mixed = _mixture(of_one, alpha)
    spread = 2 * variance * (variance + mixed) / mixed
    half = math.sqrt(spread * (0.5 * math.log1p(mixed / variance) + math.log(1 / alpha)))
    return Estimate(count=count, mean=mean, low=mean - half, high=mean + half)
