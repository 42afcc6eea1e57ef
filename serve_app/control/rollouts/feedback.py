"""Clients' feedback about answers, stored by request, metric and key.

Feedback may arrive before the ledger has its request. It counts once the ledger has a request with that id
and key, and is dropped if that takes over an hour. Independent of comparisons.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.ledger.tables import Usage
from serve_app.control.rollouts.measured import METRICS
from serve_app.control.rollouts.tables import FeedbackRow
from serve_app.errors import InvalidField, ModelNotFound, Overloaded
from serve_app.limits import MAX_FEEDBACK
from serve_app.types import Caller
from serve_app.types.control import Done, GiveFeedback

RESERVED: Final = frozenset({*METRICS, "error_rate"})  # the server's own metrics
MAX_METRICS: Final = 20  # of one request
MAX_UNKNOWN: Final = 10_000  # of one key's feedback, for requests that are not in the ledger yet
UNKNOWN_S: Final = 3600.0  # after which such feedback is forgotten
RETRY_S: Final = 60.0

_METRIC: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
# A request's id as in answers and `X-Request-Id`: with a prefix, and the number of the prompt.
_REQUEST_ID: Final = re.compile(r"(?:[A-Za-z]{1,16}[-_])?([0-9a-f]{32})(?:-\d{1,6})?")


class Feedback:
    """The feedback of all keys."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def handlers(self) -> Handlers:
        return {GiveFeedback: self._give}

    async def _give(self, command: GiveFeedback, caller: Caller) -> Done:
        request_id = request_id_of(command.request_id)
        check_metric(command.metric)
        if not math.isfinite(command.value) or abs(command.value) > MAX_FEEDBACK:
            raise InvalidField("value", f"must be a number from {-MAX_FEEDBACK:g} to {MAX_FEEDBACK:g}")
        now = self._clock()

        def work(session: Session) -> None:
            usage = session.get(Usage, request_id)
            if usage is not None and not _is_own(usage, command):
                raise ModelNotFound("request_id", "there is no such request of this key and endpoint")
            if usage is None:
                _check_unknown(session, command.key_id, now)
            _check_metrics(session, request_id, command)
            session.merge(
                FeedbackRow(
                    request_id=request_id,
                    key_id=command.key_id,
                    metric=command.metric,
                    endpoint=command.endpoint,
                    value=command.value,
                    given=now,
                    is_known=usage is not None,
                )
            )

        await self._database.run(work)
        return Done()


def request_id_of(text: str) -> str:
    """The ledger's id of a request, given the id that its client received. Raises InvalidField."""
    found = _REQUEST_ID.fullmatch(text)
    if found is None:
        raise InvalidField(
            "request_id",
            "must be the `id` of an answer, or the header `x-request-id` where the client sent none",
        )
    return found[1]


def check_metric(metric: str) -> None:
    """Raises InvalidField."""
    if not _METRIC.fullmatch(metric):
        raise InvalidField(
            "metric", "must be 1 to 64 characters of A-Z a-z 0-9 _ . - beginning with a letter"
        )
    if metric in RESERVED:
        raise InvalidField("metric", f"{metric!r} is a metric of the server's own; choose another name")


def _is_own(usage: Usage, command: GiveFeedback) -> bool:
    return usage.key_id == command.key_id and not usage.is_shadow and command.endpoint in ("", usage.endpoint)


def _check_unknown(session: Session, key_id: str, now: float) -> None:
    """Make room for feedback about one more request that is not in the ledger yet. Raises Overloaded."""
    unknown = (FeedbackRow.key_id == key_id, FeedbackRow.is_known.is_(False))
    count = select(func.count()).select_from(FeedbackRow).where(*unknown)
    if session.scalar(count) < MAX_UNKNOWN:  # type: ignore[operator]  # a count is never None
        return
    known = select(Usage.id).where(Usage.id == FeedbackRow.request_id).exists()
    session.execute(update(FeedbackRow).where(*unknown, known).values(is_known=True))
    session.execute(delete(FeedbackRow).where(*unknown, FeedbackRow.given < now - UNKNOWN_S))
    if (session.scalar(count) or 0) >= MAX_UNKNOWN:
        raise Overloaded(
            "there is too much feedback of this key for requests that are not recorded yet",
            retry_after_s=RETRY_S,
        )


def _check_metrics(session: Session, request_id: str, command: GiveFeedback) -> None:
    """Raises InvalidField."""
    rows = select(FeedbackRow.metric).where(
        FeedbackRow.request_id == request_id, FeedbackRow.key_id == command.key_id
    )
    metrics = set(session.scalars(rows))
    if command.metric not in metrics and len(metrics) >= MAX_METRICS:
        raise InvalidField("metric", f"a request has at most {MAX_METRICS} metrics")
