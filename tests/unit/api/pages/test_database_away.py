"""A database that leaves while the server runs, from its lock to what clients read."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.config import ControlConfig
from serve_app.control.database import url
from serve_app.control.plane import ControlPlane
from serve_app.deployments.gateway.control import management as control
from serve_app.deployments.gateway.control.management import RemoteManagement, SnapshotFeed
from serve_app.types import Caller
from serve_app.types.control import Command, GatewayReport, ReplyT
from tests.support.databases import open_database
from tests.support.fake_cluster import FakeCluster
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway
from tests.support.run_time_keys import take

KEYS = "/api/2.0/keys"
ENDPOINTS = "/api/2.0/serving-endpoints"
OPERATOR, LINE = new_key("operator", ["inference", "manage"])


class Link:
    """A control plane in this process, reached as a gateway reaches one."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def call(self, command: Command[ReplyT], caller: Caller, within_s: float) -> ReplyT:
        async with asyncio.timeout(within_s):
            return await self._plane.do(command, caller)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway that polls a control plane over `control.db` in `folder`."""
    plane = ControlPlane(open_database(f"sqlite:///{folder / 'control.db'}"), FakeCluster(), ControlConfig())
    link: Any = Link(plane)
    declared = {"endpoints": [{"name": "demo"}]}

    def report() -> GatewayReport:
        in_force = 0 if feed.current is None else feed.current.version
        return GatewayReport(gateway="g", declared=declared, in_force=in_force)

    feed = SnapshotFeed(link, folder / "snapshot", report)
    async with gateway(keys=LINE, management=RemoteManagement(link, feed), at_run_time=True) as g:
        feed.subscribe(lambda snapshot: take(g.services, snapshot))
        plane.start()
        feed.start()
        try:
            await feed.first(60.0)
            yield g
        finally:
            feed.close()
            await plane.close()


async def health(g: Gateway, key: str | None = OPERATOR) -> dict[str, Any]:
    answer = await g.client.get("/readyz", headers={} if key is None else bearer(key))
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def until_status(g: Gateway, status: str) -> None:
    async with asyncio.timeout(60):
        while (await health(g))["status"] != status:
            await asyncio.sleep(0.02)


async def test_readyz_tells_and_lists_go_on_until_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url, "BUSY_S", 0.05)
    monkeypatch.setattr(control, "POLL_S", 0.1)
    monkeypatch.setattr(control, "PAUSE_S", 0.01)
    async with served(tmp_path) as g:
        made = await g.post(KEYS, {"name": "alice", "budget": 5}, headers=bearer(OPERATOR))
        secret, info = made.json()["key"], made.json()["key_info"]
        await until_status(g, "ready")
        listed = (await g.client.get(KEYS, headers=bearer(OPERATOR))).json()
        assert listed["keys"] == [info | {"spent": 0.0}]
        assert "notice" not in listed
        with closing(sqlite3.connect(tmp_path / "control.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = await g.post(KEYS, {"name": "bob"}, headers=bearer(OPERATOR))
            assert refused.status_code == 503
            assert str(tmp_path) not in refused.text
            await until_status(g, "degraded")
            file = tmp_path / "control.db"
            reason = (
                f"nothing can be changed at run time: the database {file} does not answer: database is locked"
            )
            for key in (OPERATOR, secret):
                assert await health(g, key) == {"status": "degraded", "reasons": [reason]}
            for stranger in (None, "sk-nobody"):
                assert await health(g, stranger) == {"status": "degraded"}
            assert (await g.post(CHAT, chat_body(), headers=bearer(secret))).status_code == 200
            kept = (await g.client.get(KEYS, headers=bearer(OPERATOR))).json()
            assert kept["keys"] == [info]
            assert kept["declared_keys"] == listed["declared_keys"]
            assert "without last_used_time and spent" in kept["notice"]
            every = await g.client.get(f"{KEYS}?all=true", headers=bearer(OPERATOR))
            assert every.json() == kept
            assert (await g.client.get(KEYS, headers=bearer(secret))).status_code == 403
            shown = await g.client.get(ENDPOINTS, headers=bearer(OPERATOR))
            assert [each["name"] for each in shown.json()["endpoints"]] == ["demo"]
            tokens = await g.client.get("/api/2.0/token/list", headers=bearer(OPERATOR))
            assert (tokens.status_code, tokens.json()) == (200, {"token_infos": []})
        await until_status(g, "ready")
        assert (await g.client.get(KEYS, headers=bearer(OPERATOR))).json() == listed
