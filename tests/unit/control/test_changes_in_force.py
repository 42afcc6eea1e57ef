"""A change is answered once every gateway that is heard of serves by it, or with how many do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from serve_app.control import snapshots
from serve_app.control.plane import ControlPlane
from serve_app.types.control import (
    AwaitChanges,
    CreateKey,
    GatewayReport,
    RevokeKey,
    Snapshot,
    WatchSnapshot,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, plane_over

ADMIN = CreateKey(name="admin", scopes=("inference", "manage"))


class LateGateway:
    """Tells the control plane only what a test wants it to."""

    def __init__(self, plane: ControlPlane, name: str = "late") -> None:
        self._plane = plane
        self._name = name
        self._number = 0

    async def tell(
        self, in_force: int, *, is_leaving: bool = False, number: int | None = None, endpoint: str = ""
    ) -> Snapshot:
        self._number = self._number + 1 if number is None else number
        waiting = {endpoint: ("model-other",)} if endpoint else {}
        report = GatewayReport(
            gateway=self._name, declared={}, in_force=in_force, waiting=waiting, is_leaving=is_leaving
        )
        return await self._plane.do(
            WatchSnapshot(report=report, after=0, wait_s=1.0, number=self._number), OPERATOR
        )


async def behind(plane: ControlPlane, endpoint: str = "") -> int:
    return (await plane.do(AwaitChanges(endpoint=endpoint), OPERATOR)).behind


async def test_a_change_is_awaited_until_the_last_gateway_serves_by_it(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        late = LateGateway(plane)
        await late.tell(gateway.snapshot.version)
        await plane.do(ADMIN, OPERATOR)
        waiting = asyncio.ensure_future(behind(plane))
        while not gateway.snapshot.keys:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await late.tell(gateway.snapshot.version)
        async with asyncio.timeout(60):
            assert await waiting == 0


async def test_one_gateway_has_a_new_key_and_forgets_a_revoked_one_before_the_answer(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await plane.do(ADMIN, OPERATOR)
        for number in range(10):
            name = f"key-{number}"
            await plane.do(CreateKey(name=name), OPERATOR)
            assert await behind(plane) == 0
            assert name in {key.name for key in gateway.snapshot.keys}
            await plane.do(RevokeKey(id=name), OPERATOR)
            assert await behind(plane) == 0
            assert name not in {key.name for key in gateway.snapshot.keys}


async def test_a_silent_gateway_is_named_once_it_had_its_time_and_holds_nobody_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        late, gateways = LateGateway(plane), plane.snapshots._gateways
        await late.tell(gateway.snapshot.version)
        await plane.do(ADMIN, OPERATOR)
        while not gateway.snapshot.keys or gateways.behind(gateway.snapshot.version) != {"late"}:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(snapshots, "FOLLOW_S", 0.05)
        assert await behind(plane) == 1
        monkeypatch.setattr(snapshots, "FOLLOW_S", 3600.0)
        await plane.do(CreateKey(name="second"), OPERATOR)
        async with asyncio.timeout(60):
            assert await behind(plane) == 1
        await late.tell(gateway.snapshot.version)
        assert await behind(plane) == 0
        await plane.do(CreateKey(name="third"), OPERATOR)
        again = asyncio.ensure_future(behind(plane))  # it spoke, so it lives
        await asyncio.sleep(0.05)
        assert not again.done()
        await late.tell(gateway.snapshot.version, is_leaving=True)
        async with asyncio.timeout(60):
            assert await again == 0


async def test_a_report_that_was_overtaken_changes_nothing(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await plane.do(ADMIN, OPERATOR)
        assert await behind(plane) == 0
        late = LateGateway(plane)
        await late.tell(gateway.snapshot.version, number=2)
        await late.tell(0, number=1)
        async with asyncio.timeout(snapshots.FOLLOW_S / 2):
            assert await behind(plane) == 0


async def test_an_endpoint_that_a_gateway_holds_back_is_not_changed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        late = LateGateway(plane)
        await late.tell(gateway.snapshot.version, endpoint="mine")
        monkeypatch.setattr(snapshots, "FOLLOW_S", 0.05)
        assert await behind(plane) == 0
        assert await behind(plane, "mine") == 1


async def test_a_change_that_no_snapshot_has_yet_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        monkeypatch.setattr(snapshots, "FOLLOW_S", 0.05)
        plane.snapshots._changes += 1  # and no snapshot is made
        began = time.monotonic()
        assert await behind(plane) == 1
        assert time.monotonic() - began >= 0.05
