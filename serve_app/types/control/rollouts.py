"""Rollouts in guarded steps, and the comparison of an endpoint's entities."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from serve_app.types.control.command import Command, Done, EndpointChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The limits that the new entity must keep to. None: not checked."""

    max_error_rate: float | None = 0.05  # share of its requests that failed
    max_first_token_s: float | None = None  # 95th percentile
    max_total_s: float | None = None  # 95th percentile
    min_requests: int = 20  # in a step, before the next one; proof of a broken guard needs no number


class RolloutState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"  # the new entity has all traffic
    ROLLED_BACK = "ROLLED_BACK"  # a guard was broken
    STOPPED = "STOPPED"  # by its user


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutShown:
    """A rollout and its state."""

    endpoint: str
    entity: str
    steps: tuple[int, ...]
    step: int  # index of the step that is in force
    interval_s: float
    guards: Guards
    state: RolloutState
    message: str = ""  # what was decided last, and why
    started: float = 0.0  # Unix seconds
    changed: float = 0.0
    former_traffic: dict[str, int] = field(default_factory=dict)  # restored by a rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRollout(EndpointChange[RolloutShown]):
    """Move the traffic to `entity` in steps, given in percent, each at least `interval_s` long."""

    entity: str
    steps: tuple[int, ...] = (5, 25, 50, 100)
    interval_s: float = 60.0
    guards: Guards = Guards()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRollout(Command[RolloutShown]):
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRollout(EndpointChange[RolloutShown]):
    """End a rollout: restore the former traffic split, or send all traffic to the new entity."""

    promote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveFeedback(Command[Done]):
    """A client's judgement of an answer. A later value of the same metric replaces an earlier one."""

    request_id: str
    metric: str
    value: float
    key_id: str  # of the caller: only the key that made the request may judge its answer
    endpoint: str = ""  # that answered; "": any


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with a confidence interval that stays valid however often it is computed."""

    count: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReport:
    """Statistics of one entity's requests."""

    entity: str
    requests: int
    outcomes: dict[str, int]
    error_rate: Estimate
    first_token_s: Estimate
    total_s: Estimate
    prompt_tokens: Estimate
    completion_tokens: Estimate
    feedback: dict[str, Estimate] = field(default_factory=dict)  # by metric
    shadow: bool = False  # statistics of shadow copies, not of requests that the entity answered


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTest:
    """Whether two entities differ in a metric: an always-valid test of the difference of their means."""

    metric: str
    entity: str
    against: str
    difference: Estimate  # mean of `entity` minus mean of `against`
    p_value: float  # always valid: may be looked at after every request
    is_significant: bool  # at the report's confidence, for all its tests together
    shadow: bool = False  # `entity` by its copies of other requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    endpoint: str
    since: float
    confidence: float
    entities: tuple[EntityReport, ...]
    tests: tuple[MetricTest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareEntities(Command[ComparisonReport]):
    """Compare the entities of an endpoint since a given time. `metric` is the metric to test."""

    endpoint: str
    metric: str = "error_rate"  # or first_token_s, total_s, completion_tokens, or a metric of feedback
    since: float | None = None  # Unix seconds; None: since the endpoint's newest configuration
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PutShadow(EndpointChange[Done]):
    """Copy a share of an endpoint's requests to one of its entities: see endpoints.ai_gateway.Shadow."""

    shadow: dict[str, Any] | None  # None: copy nothing from now on
