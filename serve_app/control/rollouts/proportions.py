"""Shares of requests, such as the share that failed: intervals and tests that hold at every request.

They are exact for any number of requests, even if traffic is moved because of earlier results. Requests
count as independent. Uses no database.

One share: a Beta(1/2, 1/2) mixture of likelihood ratios is a martingale under the true share p,

    M(p) = B(1/2 + s, 1/2 + f) / (B(1/2, 1/2) p^s (1 - p)^f),    s successes, f failures,

so by Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha (Robbins, 1970,
"Statistical methods related to the law of the iterated logarithm"). All p with M(p) < 1 / alpha are in the
interval.

Two shares that differ by d: the product of both mixtures, divided by the largest likelihood that such shares
can have, never exceeds such a martingale (Wasserman, Ramdas, Balakrishnan, 2020, "Universal inference").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from serve_app.types.control import Estimate

_PRIOR: Final = 0.5
_ROUNDS: Final = 60  # of bisection: to the last digits of a float
_EDGE: Final = 1e-15


@dataclass(frozen=True, slots=True)
class Share:
    """How many of `count` requests were hits; the caller decides what a hit is."""

    hits: int
    count: int

    @property
    def mean(self) -> float | None:
        return self.hits / self.count if self.count else None

    def __add__(self, other: Share) -> Share:
        return Share(self.hits + other.hits, self.count + other.count)


def share_estimate(share: Share, alpha: float) -> Estimate:
    """The share, and an interval for it.

    The probability that the interval misses the true share at any time is at most `alpha`.
    """
    low, high = share_interval(share, alpha)
    return Estimate(count=share.count, mean=share.mean, low=low, high=high)


def share_interval(share: Share, alpha: float) -> tuple[float, float]:
    """Both ends of the interval for the true share, within 0 and 1."""
    most = math.log(1 / alpha)
    return _ends(lambda p: evidence_against(share, p) < most, share.mean, 0.0, 1.0)


def evidence_against(share: Share, p: float) -> float:
    """The logarithm of M(p): the evidence against a true share of `p`."""
    hits, others = share.hits, share.count - share.hits
    return _log_mixture(share) - _log_likelihood(hits, others, p)


def difference_estimate(share: Share, against: Share, alpha: float) -> Estimate:
    """`share` minus `against`, with an interval that is always valid, like that of one share."""
    low, high = -1.0, 1.0
    mean = None
    if share.mean is not None and against.mean is not None:
        mean = share.mean - against.mean
        most = math.log(1 / alpha)
        low, high = _ends(lambda d: evidence_of_difference(share, against, d) < most, mean, -1.0, 1.0)
    return Estimate(count=share.count + against.count, mean=mean, low=low, high=high)


def p_value(share: Share, against: Share) -> float:
    """An always-valid p-value of "both true shares are equal"."""
    return min(1.0, math.exp(-evidence_of_difference(share, against, 0.0)))


def evidence_of_difference(share: Share, against: Share, difference: float) -> float:
    """The logarithm of the evidence against true shares that differ by `difference`."""
    p = _likeliest(share, against, difference)
    best = _log_likelihood(against.hits, against.count - against.hits, p) + _log_likelihood(
        share.hits, share.count - share.hits, p + difference
    )
    return _log_mixture(share) + _log_mixture(against) - best


def _likeliest(share: Share, against: Share, difference: float) -> float:
    """The likeliest true share behind `against`, if the one behind `share` is higher by `difference`."""
    if difference == 0:
        return (share + against).mean or 0.0
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)
    for _ in range(_ROUNDS):  # the likelihood is concave: its slope falls
        middle = (low + high) / 2
        if _slope(against, middle) + _slope(share, middle + difference) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _ends(
    is_inside: Callable[[float], bool], centre: float | None, low: float, high: float
) -> tuple[float, float]:
    """Both ends of the interval around `centre`, within `low` and `high`, in which `is_inside` holds."""
    if centre is None:
        return low, high

    def end(outside: float) -> float:
        if is_inside(outside):
            return outside
        inside = centre
        for _ in range(_ROUNDS):
            middle = (inside + outside) / 2
            if is_inside(middle):
                inside = middle
            else:
                outside = middle
        return outside

    return end(low), end(high)


def _log_mixture(share: Share) -> float:
    hits, others = share.hits, share.count - share.hits
    return _log_beta(_PRIOR + hits, _PRIOR + others) - _log_beta(_PRIOR, _PRIOR)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_likelihood(hits: int, others: int, p: float) -> float:
    return _times_log(hits, p) + _times_log(others, 1 - p)


def _times_log(count: int, p: float) -> float:
    if count == 0:
        return 0.0
    return count * math.log(p) if p > _EDGE else -math.inf


def _slope(share: Share, p: float) -> float:
    hits, others = share.hits, share.count - share.hits
    return hits / max(p, _EDGE) - others / max(1 - p, _EDGE)
