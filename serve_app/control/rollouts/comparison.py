"""The comparison of an endpoint's entities: statistics of each, and tests of their differences.

Every other entity is compared with the one that has the most traffic. The confidence level holds for all
tests of a report together. Shadow copies of an entity are compared separately from its own requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from serve_app.control.rollouts import means, proportions
from serve_app.control.rollouts.means import Moments
from serve_app.control.rollouts.measured import METRICS, Measured
from serve_app.control.rollouts.proportions import Share
from serve_app.types.control import ComparisonReport, EntityReport, Estimate, MetricTest

ERROR_RATE = "error_rate"


class Compared(NamedTuple):
    """One line of a report."""

    entity: str
    is_shadow: bool
    seen: Measured


def compare(
    endpoint: str,
    traffic: Mapping[str, int],
    found: Mapping[tuple[str, bool], Measured],
    *,
    metric: str,
    since: float,
    confidence: float,
) -> ComparisonReport:
    """The report on all entities in `traffic` (entity -> percentage), and on any others that had requests."""
    alpha = 1 - confidence
    lines = [Compared(name, False, found.get((name, False), Measured())) for name in traffic]
    lines += [Compared(*key, seen) for key, seen in sorted(found.items()) if key[1] or key[0] not in traffic]
    base = max(lines, key=lambda line: (not line.is_shadow, traffic.get(line.entity, 0)), default=None)
    others = [line for line in lines if line is not base]
    return ComparisonReport(
        endpoint=endpoint,
        since=since,
        confidence=confidence,
        entities=tuple(_report(line, alpha) for line in lines),
        tests=() if base is None else tuple(_tests(others, base, metric, alpha)),
    )


def _report(line: Compared, alpha: float) -> EntityReport:
    seen = line.seen
    estimates = {name: means.mean_estimate(seen.metrics.get(name, Moments()), alpha) for name in METRICS}
    return EntityReport(
        entity=line.entity,
        shadow=line.is_shadow,
        requests=seen.requests,
        outcomes=dict(seen.outcomes),
        error_rate=proportions.share_estimate(seen.failed, alpha),
        feedback={name: _rated(seen, name, alpha) for name in sorted(seen.ratings)},
        **estimates,
    )


def _rated(seen: Measured, metric: str, alpha: float) -> Estimate:
    ratings = seen.ratings[metric]
    if ratings.are_votes:
        return proportions.share_estimate(Share(ratings.ones, ratings.values.count), alpha)
    return means.mean_estimate(ratings.values, alpha)


def _tests(others: list[Compared], base: Compared, metric: str, alpha: float) -> Iterable[MetricTest]:
    """One test for each entity, each at an equal part of `alpha`."""
    part = alpha / max(1, len(others))
    for line in others:
        difference, p_value = _test(line.seen, base.seen, metric, part)
        yield MetricTest(
            metric=metric,
            entity=line.entity,
            against=base.entity,
            difference=difference,
            p_value=p_value,
            is_significant=p_value <= part,
            shadow=line.is_shadow,
        )


def _test(seen: Measured, base: Measured, metric: str, alpha: float) -> tuple[Estimate, float]:
    """The difference between `seen` and `base`, with its interval, and its p-value."""
    share, against = _share(seen, metric), _share(base, metric)
    if share is not None and against is not None:
        return proportions.difference_estimate(share, against, alpha), proportions.p_value(share, against)
    values = _moments(seen, metric), _moments(base, metric)
    return means.difference_estimate(*values, alpha), means.p_value(*values, alpha)


def _share(seen: Measured, metric: str) -> Share | None:
    """The metric as a share of requests; None if its values are not all 0 or 1."""
    if metric == ERROR_RATE:
        return seen.failed
    if metric in METRICS:
        return None
    ratings = seen.ratings.get(metric)
    if ratings is None:
        return Share(0, 0)
    return Share(ratings.ones, ratings.values.count) if ratings.are_votes else None


def _moments(seen: Measured, metric: str) -> Moments:
    if metric in METRICS:
        return seen.metrics.get(metric, Moments())
    ratings = seen.ratings.get(metric)
    return Moments() if ratings is None else ratings.values
