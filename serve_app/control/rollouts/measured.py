"""Reads from the ledger the requests to each entity of an endpoint.

A request counts as failed when the server failed, or when another entity had to answer. Invalid requests,
clients that left and gateways that died do not count for or against an entity.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, and_, case, cast, func, or_, select
from sqlalchemy.orm import Session

from serve_app.control.ledger.tables import Usage
from serve_app.control.rollouts.decision import NONE, StepSeen
from serve_app.control.rollouts.means import Moments
from serve_app.control.rollouts.proportions import Share
from serve_app.control.rollouts.tables import FeedbackRow
from serve_app.types.control import Guards

SEPARATOR: Final = ","  # between names in `Usage.failed_over`; no name contains it
METRICS: Final = ("first_token_s", "total_s", "prompt_tokens", "completion_tokens")

# Statuses below 500 that protocols use to report that the server failed or was full.
_FAULT_STATUSES: Final = (424, 429)
_IS_FAULT: Final = and_(
    Usage.outcome == "failed",
    or_(Usage.status < 400, Usage.status >= 500, Usage.status.in_(_FAULT_STATUSES)),
)
_IS_FINISHED: Final = Usage.outcome == "finished"


@dataclass(slots=True)
class Ratings:
    """The feedback for one metric."""

    values: Moments
    ones: int
    are_votes: bool  # every value is 0 or 1


@dataclass(slots=True)
class Measured:
    """The requests to one entity, or the shadow copies that it got of others' requests."""

    requests: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failed: Share = NONE
    metrics: dict[str, Moments] = field(default_factory=dict)  # of METRICS, of finished requests
    ratings: dict[str, Ratings] = field(default_factory=dict)


def measured(session: Session, endpoint: str, since: float) -> dict[tuple[str, bool], Measured]:
    """The requests that began at `since` or later, by entity and by whether they are shadow copies."""
    found: defaultdict[tuple[str, bool], Measured] = defaultdict(Measured)
    columns = [getattr(Usage, name) for name in METRICS]
    sums = [each for column in columns for each in _sums(column)]
    rows = session.execute(
        select(Usage.entity, Usage.is_shadow, Usage.outcome, func.count(), _count(_IS_FAULT), *sums)
        .where(*_since(endpoint, since))
        .group_by(Usage.entity, Usage.is_shadow, Usage.outcome)
    )
    for entity, is_shadow, outcome, count, faults, *rest in rows:
        each = found[entity, is_shadow]
        each.requests += count
        each.outcomes[outcome] = count
        each.failed += Share(faults, count if outcome == "finished" else faults)
        if outcome == "finished":
            each.metrics = {
                name: Moments(rest[3 * place], rest[3 * place + 1] or 0.0, rest[3 * place + 2] or 0.0)
                for place, name in enumerate(METRICS)
            }
    for entity, count in _failed_over(session, endpoint, since).items():
        each = found[entity, False]
        each.failed += Share(count, count)
        each.outcomes["failed_over"] = count
    for entity, metric, ratings in _ratings(session, endpoint, since):
        found[entity, False].ratings[metric] = ratings
    return dict(found)


def step_seen(
    session: Session, endpoint: str, entity: str, since: float, now: float, guards: Guards
) -> StepSeen:
    """The requests to `entity` that began at `since` or later, as the guards count them."""
    first_s, total_s = guards.max_first_token_s, guards.max_total_s
    row = session.execute(
        select(
            _count(_IS_FINISHED),
            _count(_IS_FAULT),
            _count(and_(_IS_FINISHED, Usage.first_token_s.is_not(None))),
            _count(and_(_IS_FINISHED, Usage.first_token_s > (first_s or 0))),
            _count(and_(_IS_FINISHED, Usage.total_s > (total_s or 0))),
        ).where(*_since(endpoint, since), Usage.entity == entity, Usage.is_shadow.is_(False))
    ).one()
    finished, faults, timed, slow_first, slow_total = (int(each or 0) for each in row)
    faults += _failed_over(session, endpoint, since).get(entity, 0)
    return StepSeen(
        seconds=now - since,
        failed=Share(faults, finished + faults),
        slow_first=Share(slow_first, timed),
        slow_total=Share(slow_total, finished),
    )


def _since(endpoint: str, since: float) -> tuple[ColumnElement[bool], ...]:
    return Usage.endpoint == endpoint, Usage.started >= since, Usage.is_ended.is_(True)


def _count(condition: ColumnElement[bool]) -> Any:
    return func.sum(case((condition, 1), else_=0))


def _sums(column: Any) -> tuple[Any, Any, Any]:
    """Count, sum and sum of squares; as floats, so that squared token counts do not overflow."""
    value = cast(column, Float(53))
    return func.count(column), func.sum(value), func.sum(value * value)


def _failed_over(session: Session, endpoint: str, since: float) -> dict[str, int]:
    """How often each entity failed a request that was then passed on to another entity."""
    found: defaultdict[str, int] = defaultdict(int)
    rows = session.execute(
        select(Usage.failed_over, func.count())
        .where(*_since(endpoint, since), Usage.failed_over != "")
        .group_by(Usage.failed_over)
    )
    for names, count in rows:
        for name in names.split(SEPARATOR):
            found[name] += count
    return dict(found)


def _ratings(session: Session, endpoint: str, since: float) -> list[tuple[str, str, Ratings]]:
    value = FeedbackRow.value
    rows = session.execute(
        select(
            Usage.entity,
            FeedbackRow.metric,
            func.count(),
            func.sum(value),
            func.sum(value * value),
            _count(value == 1.0),
            _count(or_(value == 0.0, value == 1.0)),
        )
        .join(Usage, and_(Usage.id == FeedbackRow.request_id, Usage.key_id == FeedbackRow.key_id))
        .where(
            *_since(endpoint, since),
            Usage.is_shadow.is_(False),
            FeedbackRow.endpoint.in_(("", endpoint)),
        )
        .group_by(Usage.entity, FeedbackRow.metric)
    )
    return [
        (entity, metric, Ratings(Moments(count, total, squares), int(ones), votes == count))
        for entity, metric, count, total, squares, ones, votes in rows
    ]
