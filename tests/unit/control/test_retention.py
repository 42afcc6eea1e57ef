"""Old usage goes, on either database, and nothing else does."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select

from serve_app.control import retention as module
from serve_app.control.ledger.tables import Spending
from serve_app.control.retention import DAY_S, Retention
from serve_app.control.rollouts.tables import FeedbackRow
from serve_app.errors import Unavailable
from serve_app.types.control import ShipUsage
from tests.support.ledger import LedgerPlane
from tests.unit.control.ledger.test_reports import MANAGER, RECORD

NOW = 1_804_000_000.0  # in March 2027
KEPT_DAYS = 366


def record(id, age_days):
    return replace(RECORD, id=id, started=NOW - age_days * DAY_S)


def feedback(id, age_days):
    return FeedbackRow(
        request_id=id,
        key_id="alice",
        metric="liked",
        endpoint="chat",
        value=1.0,
        given=NOW - age_days * DAY_S,
        is_known=True,
    )


async def test_rows_that_are_old_are_removed(each_database, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)  # in several transactions
    plane = LedgerPlane(each_database)
    ages = {"today": 0, "young": 365, "old": 367, "older": 400, "oldest": 1_000}
    await plane.do(ShipUsage(ended=tuple(record(id, age) for id, age in ages.items())), MANAGER)
    await each_database.run(
        lambda session: session.add_all(
            [feedback("young", 365), feedback("old", 367), feedback("older", 400)]
        )
    )
    months = lambda session: sorted(session.scalars(select(Spending.month)))  # noqa: E731
    assert await each_database.run(months) == ["2024-06", "2026-01", "2026-02", "2026-03", "2027-03"]
    retention = Retention(each_database, KEPT_DAYS, clock=lambda: NOW)
    assert await retention.sweep() == 3 + 2 + 3
    assert set(await plane.rows()) == {"today", "young"}
    liked = await each_database.run(lambda session: session.scalars(select(FeedbackRow.request_id)).all())
    assert liked == ["young"]
    assert await each_database.run(months) == ["2026-03", "2027-03"]  # a month goes as a whole
    assert await retention.sweep() == 0


async def test_it_goes_on_where_the_database_is_away_for_a_while(database, monkeypatch):
    plane = LedgerPlane(database)
    await plane.do(ShipUsage(ended=(record("old", 367),)), MANAGER)
    retention = Retention(database, KEPT_DAYS, clock=lambda: NOW, every_s=0.01)
    tries, sweep = [], retention.sweep

    async def fails_first():
        tries.append(1)
        if len(tries) == 1:
            raise Unavailable("away")
        return await sweep()

    monkeypatch.setattr(retention, "sweep", fails_first)
    running = asyncio.ensure_future(retention.run())
    async with asyncio.timeout(60):
        while await plane.rows():
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
