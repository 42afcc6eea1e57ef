"""Removes old usage, spending, feedback and responses. Does not deal with journals.

Rows are removed in small transactions, so that other transactions can run in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import ColumnElement, delete, select, tuple_
from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.database.tables import Table
from serve_app.control.ledger.budgets import month_of
from serve_app.control.ledger.tables import Spending, Usage
from serve_app.control.responses.tables import ResponseRow
from serve_app.control.rollouts.tables import FeedbackRow
from serve_app.errors import Unavailable

logger = logging.getLogger(__name__)

EVERY_S: Final = 3600.0  # between two sweeps
ROWS_AT_ONCE: Final = 1000  # removed in one transaction: about 20 ms
DAY_S: Final = 86_400.0


class Retention:
    """Limits the age of rows in the database."""

    def __init__(
        self,
        database: Database,
        days: int,
        response_days: float = 30.0,
        *,
        clock: Callable[[], float] = time.time,
        every_s: float = EVERY_S,
    ) -> None:
        """`days`: how long usage and feedback are kept. `clock` gives Unix seconds."""
        self._database = database
        self._keep_s = days * DAY_S
        self._keep_responses_s = response_days * DAY_S
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        """Remove old rows at once and then every hour, until cancelled."""
        while True:
            try:
                removed = await self.sweep()
                if removed:
                    logger.info("%d rows of usage, feedback and responses were old, and are removed", removed)
            except Unavailable:  # the next sweep finds the rows again
                pass
            await asyncio.sleep(self._every_s)

    async def sweep(self) -> int:
        """Remove all old rows. Returns their number. Raises Unavailable."""
        now = self._clock()
        before = now - self._keep_s
        removed = 0
        for table, is_old in (
            (Usage, Usage.started < before),
            (FeedbackRow, FeedbackRow.given < before),
            (Spending, Spending.month < month_of(before)),
            (ResponseRow, ResponseRow.used < now - self._keep_responses_s),
        ):
            while count := await self._database.run(lambda session: _remove(session, table, is_old)):  # noqa: B023
                removed += count
        return removed


def _remove(session: Session, table: type[Table], is_old: ColumnElement[bool]) -> int:
    """Remove some rows. Returns how many were removed."""
    key = tuple_(*table.__table__.primary_key)
    rows = session.execute(select(*table.__table__.primary_key).where(is_old).limit(ROWS_AT_ONCE)).all()
    if rows:
        session.execute(delete(table).where(key.in_([tuple(row) for row in rows])))
    return len(rows)
