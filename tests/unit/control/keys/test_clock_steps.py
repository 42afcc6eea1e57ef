"""The clock is wrong for a while: keys that have not ended are good again once it is right."""

from __future__ import annotations

import asyncio

import pytest

from serve_app.control import snapshots
from serve_app.control.database.database import Database
from serve_app.control.gateways import Gateways
from serve_app.control.keys.keys import Keys
from serve_app.control.snapshots import SnapshotParts, Snapshots
from serve_app.types.control import CreateKey, GatewayReport, Snapshot, WatchSnapshot
from tests.support.fake_cluster import OPERATOR

HOUR = 3600.0


async def test_a_key_that_a_wrong_clock_ended_is_in_force_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOOK_S", 0.02)
    ahead_s = 0.0

    def clock() -> float:
        return asyncio.get_running_loop().time() + ahead_s

    parts = SnapshotParts()
    made = Snapshots(database, parts, Gateways(), clock)
    keys = Keys(database, made.changed, lambda: 1e9 + ahead_s)
    parts.keys = keys.in_force
    create, watch = keys.handlers()[CreateKey], made.handlers()[WatchSnapshot]

    async def names(after: int) -> tuple[int, set[str]]:
        """The next snapshot, and whose keys it has."""
        report = GatewayReport(gateway="g", declared={}, in_force=after)
        found: Snapshot = await watch(WatchSnapshot(report=report, after=after, wait_s=20.0), OPERATOR)
        return found.version, {each.name for each in found.keys}

    running = asyncio.ensure_future(made.run())
    try:
        await create(CreateKey(name="admin", scopes=("inference", "manage")), OPERATOR)
        await create(CreateKey(name="half-an-hour", lifetime_s=HOUR / 2), OPERATOR)
        version, found = await names(0)
        while "half-an-hour" not in found:
            version, found = await names(version)
        ahead_s = HOUR
        version, found = await names(version)
        assert found == {"admin"}
        ahead_s = 0.0
        version, found = await names(version)
        assert found == {"admin", "half-an-hour"}
    finally:
        running.cancel()
