"""Rollouts and comparisons as JSON. Times are in milliseconds, as everywhere in this API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from typing_extensions import TypedDict

from serve_app.types.control import ComparisonReport, EntityReport, Estimate, RolloutShown

_ESTIMATES = ("error_rate", "first_token_s", "total_s", "prompt_tokens", "completion_tokens")


class GuardsJson(TypedDict):
    """What the entity must keep to."""

    max_error_rate: float | None
    max_first_token_s: float | None
    max_total_s: float | None
    min_requests: int


class RolloutJson(TypedDict):
    """A rollout and how it stands."""

    endpoint: str
    entity: str
    state: Literal["RUNNING", "DONE", "ROLLED_BACK", "STOPPED"]
    message: str
    steps: list[int]
    step: int
    percentage: int
    interval_s: float
    guards: GuardsJson
    former_traffic: dict[str, int]
    start_timestamp: int
    last_updated_timestamp: int


class EstimateJson(TypedDict):
    """A mean, with an interval that holds however often it is looked at; null: not known yet."""

    count: int
    mean: float | None
    low: float | None
    high: float | None


class EntityReportJson(TypedDict):
    """What the requests of one entity were like, or its copies of the requests of others."""

    entity: str
    shadow: bool
    requests: int
    outcomes: dict[str, int]
    error_rate: EstimateJson
    first_token_s: EstimateJson
    total_s: EstimateJson
    prompt_tokens: EstimateJson
    completion_tokens: EstimateJson
    feedback: dict[str, EstimateJson]


class MetricTestJson(TypedDict):
    """Whether two entities differ in a metric."""

    metric: str
    entity: str
    shadow: bool
    against: str
    difference: EstimateJson
    p_value: float
    is_significant: bool


class ComparisonJson(TypedDict):
    """The entities of one endpoint, side by side."""

    endpoint: str
    since_timestamp: int
    confidence: float
    entities: list[EntityReportJson]
    tests: list[MetricTestJson]


def rollout_json(shown: RolloutShown) -> dict[str, Any]:
    return {
        "endpoint": shown.endpoint,
        "entity": shown.entity,
        "state": shown.state.value,
        "message": shown.message,
        "steps": list(shown.steps),
        "step": shown.step,
        "percentage": shown.steps[shown.step],
        "interval_s": shown.interval_s,
        "guards": asdict(shown.guards),
        "former_traffic": shown.former_traffic,
        "start_timestamp": milliseconds(shown.started),
        "last_updated_timestamp": milliseconds(shown.changed),
    }


def comparison_json(report: ComparisonReport) -> dict[str, Any]:
    return {
        "endpoint": report.endpoint,
        "since_timestamp": milliseconds(report.since),
        "confidence": report.confidence,
        "entities": [_entity(each) for each in report.entities],
        "tests": [{**asdict(test), "difference": _estimate(test.difference)} for test in report.tests],
    }


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _entity(report: EntityReport) -> dict[str, Any]:
    return {
        "entity": report.entity,
        "shadow": report.shadow,
        "requests": report.requests,
        "outcomes": report.outcomes,
        **{name: _estimate(getattr(report, name)) for name in _ESTIMATES},
        "feedback": {metric: _estimate(each) for metric, each in report.feedback.items()},
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate)
