"""The comparison of an endpoint's entities as a table. Does not depend on routes or templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.console import reading
from serve_app.console.views import Json

# metric -> (what it is called, its unit: a share, seconds or a count)
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "error_rate": ("failed requests", "share"),
    "first_token_s": ("time to first token", "s"),
    "total_s": ("whole answer", "s"),
    "prompt_tokens": ("prompt tokens", ""),
    "completion_tokens": ("completion tokens", ""),
}
_IN_WORDS: Final = {"share": reading.share, "s": reading.duration, "": reading.number}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A mean as text, with its interval."""

    mean: str
    interval: str  # "" while it is not known
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One entity of a comparison."""

    entity: str
    is_shadow: bool
    requests: int
    outcomes: tuple[tuple[str, int], ...]
    measured: tuple[Measured, ...]  # one for each row of the comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    """Whether an entity differs from the one with the most traffic."""

    __test__ = False  # tells pytest that this is not a test class

    entity: str
    is_shadow: bool
    against: str
    metric: str
    difference: Measured
    p_value: str
    is_significant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    since: int  # milliseconds since 1970
    confidence: float
    rows: tuple[str, ...]  # what is measured
    columns: tuple[Column, ...]
    tests: tuple[TestView, ...]

    @property
    def requests(self) -> int:
        return sum(column.requests for column in self.columns)


def comparison_view(report: Json) -> ComparisonView:
    """The view of a comparison's JSON."""
    feedback = sorted({metric for each in report["entities"] for metric in each.get("feedback", {})})
    return ComparisonView(
        since=report["since_timestamp"],
        confidence=report["confidence"],
        rows=(*(name for name, _ in METRICS.values()), *(f"feedback: {metric}" for metric in feedback)),
        columns=tuple(_column(each, feedback) for each in report["entities"]),
        tests=tuple(_test(each) for each in report["tests"]),
    )


def metrics_of(report: Json | None) -> list[tuple[str, str]]:
    """The metrics that can be tested: their API names with names for people."""
    known = [(metric, name) for metric, (name, _) in METRICS.items()]
    entities = [] if report is None else report["entities"]
    feedback = sorted({metric for each in entities for metric in each.get("feedback", {})})
    return known + [(metric, f"feedback: {metric}") for metric in feedback if metric not in METRICS]


def _column(entity: Json, feedback: list[str]) -> Column:
    known = [_measured(entity[metric], unit) for metric, (_, unit) in METRICS.items()]
    votes = [_measured(entity["feedback"].get(metric), "") for metric in feedback]
    return Column(
        entity=entity["entity"],
        is_shadow=entity["shadow"],
        requests=entity["requests"],
        outcomes=tuple((name, count) for name, count in entity["outcomes"].items() if count),
        measured=(*known, *votes),
    )


def _test(test: Json) -> TestView:
    name, unit = METRICS.get(test["metric"], (f"feedback: {test['metric']}", ""))
    p_value = test["p_value"]
    return TestView(
        entity=test["entity"],
        is_shadow=test["shadow"],
        against=test["against"],
        metric=name,
        difference=_measured(test["difference"], unit, is_difference=True),
        p_value="below 0.001" if p_value < 0.001 else f"{p_value:.3f}",
        is_significant=test["is_significant"],
    )


def _measured(estimate: Json | None, unit: str, *, is_difference: bool = False) -> Measured:
    if estimate is None or estimate["mean"] is None:
        return Measured(mean=reading.NOTHING, interval="", count=0 if estimate is None else estimate["count"])
    low, high = estimate["low"], estimate["high"]
    is_known = low is not None and high is not None
    return Measured(
        mean=_quantity(estimate["mean"], unit, is_difference),
        interval=f"{_quantity(low, unit)} to {_quantity(high, unit)}" if is_known else "",
        count=estimate["count"],
    )


def _quantity(value: float, unit: str, has_sign: bool = False) -> str:
    sign = "-" if value < 0 else "+" if has_sign and value > 0 else ""
    return sign + _IN_WORDS[unit](abs(value))
