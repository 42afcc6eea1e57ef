"""Rollouts and comparisons as JSON. Times are in milliseconds, as everywhere in this API."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from serve_app.types.control import ComparisonReport, EntityReport, Estimate, MetricTest, RolloutShown


class GuardsJson(TypedDict):
    """The limits that the new entity must keep to."""

    max_error_rate: float | None
    max_first_token_s: float | None
    max_total_s: float | None
    min_requests: int


class RolloutJson(TypedDict):
    """A rollout and its state."""

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
    """A mean with a confidence interval that stays valid however often it is read; null: not known yet."""

    count: int
    mean: float | None
    low: float | None
    high: float | None


class EntityReportJson(TypedDict):
    """Statistics of one entity's requests, or of its shadow copies."""

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


def rollout_json(shown: RolloutShown) -> RolloutJson:
    return {
        "endpoint": shown.endpoint,
        "entity": shown.entity,
        "state": shown.state.value,
        "message": shown.message,
        "steps": list(shown.steps),
        "step": shown.step,
        "percentage": shown.steps[shown.step],
        "interval_s": shown.interval_s,
        "guards": {
            "max_error_rate": shown.guards.max_error_rate,
            "max_first_token_s": shown.guards.max_first_token_s,
            "max_total_s": shown.guards.max_total_s,
            "min_requests": shown.guards.min_requests,
        },
        "former_traffic": shown.former_traffic,
        "start_timestamp": milliseconds(shown.started),
        "last_updated_timestamp": milliseconds(shown.changed),
    }


def comparison_json(report: ComparisonReport) -> ComparisonJson:
    return {
        "endpoint": report.endpoint,
        "since_timestamp": milliseconds(report.since),
        "confidence": report.confidence,
        "entities": [_entity(each) for each in report.entities],
        "tests": [_test(each) for each in report.tests],
    }


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _entity(report: EntityReport) -> EntityReportJson:
    return {
        "entity": report.entity,
        "shadow": report.shadow,
        "requests": report.requests,
        "outcomes": report.outcomes,
        "error_rate": _estimate(report.error_rate),
        "first_token_s": _estimate(report.first_token_s),
        "total_s": _estimate(report.total_s),
        "prompt_tokens": _estimate(report.prompt_tokens),
        "completion_tokens": _estimate(report.completion_tokens),
        "feedback": {metric: _estimate(each) for metric, each in report.feedback.items()},
    }


def _test(test: MetricTest) -> MetricTestJson:
    return {
        "metric": test.metric,
        "entity": test.entity,
        "against": test.against,
        "difference": _estimate(test.difference),
        "p_value": test.p_value,
        "is_significant": test.is_significant,
        "shadow": test.shadow,
    }


def _estimate(estimate: Estimate) -> EstimateJson:
    return {"count": estimate.count, "mean": estimate.mean, "low": estimate.low, "high": estimate.high}
