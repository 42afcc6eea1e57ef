"""A database that goes away takes nothing from who reads, and the control plane says that it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_app.control.endpoints import reconciler
from serve_app.control.plane import ControlPlane
from serve_app.errors import ModelNotFound, PermissionDenied, Unavailable
from serve_app.types import Caller, Scope
from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    CreateKey,
    EntityWanted,
    GetEndpoint,
    ListEndpoints,
    ListKeys,
    UpdateState,
    WatchSnapshot,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, FakeGateway, plane_over

READER = Caller(key_id="reader", scopes=frozenset({Scope.INFERENCE}), salt="r", user="reader")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "BUSY_S", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def made(plane: ControlPlane, gateway: FakeGateway) -> None:
    config = ConfigWanted(entities=(EntityWanted(entity_name="demo-chat"),), traffic={})
    await plane.do(CreateEndpoint(name="mine", config=config, is_provisioned=False), OPERATOR)
    await until(lambda: "mine" in gateway.endpoints)
    async with asyncio.timeout(60):
        while (await plane.do(GetEndpoint(name="mine"), OPERATOR)).update is UpdateState.IN_PROGRESS:
            await asyncio.sleep(0.01)
    await plane.do(ListEndpoints(), READER)


async def test_endpoints_are_read_on_and_changes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await made(plane, gateway)
        before = await plane.do(GetEndpoint(name="mine"), OPERATOR)
        for name, scopes in (("zoe", ("manage",)), ("alice", ("inference",))):
            await plane.do(CreateKey(name=name, scopes=scopes, budget=5.0), OPERATOR)
        await until(lambda: len(gateway.snapshot.keys) == 2)
        known = await plane.do(ListKeys(), OPERATOR)
        assert [(key.name, key.spent) for key in known.keys] == [("zoe", 0.0), ("alice", 0.0)]
        assert not known.is_kept

        def away(work: Any) -> Any:
            plane._database.problem = "the database is away"
            raise Unavailable("the database does not answer; try again")

        monkeypatch.setattr(plane._database, "_work", away)
        for caller in (OPERATOR, READER):
            listed = await plane.do(ListEndpoints(), caller)
            assert [each.name for each in listed.endpoints] == ["demo-chat", "mine"]
            assert replace(await plane.do(GetEndpoint(name="mine"), caller), updated=before.updated) == before
        for everything in (False, True):
            keys = await plane.do(ListKeys(everything=everything), OPERATOR)
            assert keys.is_kept
            assert keys.keys == tuple(replace(key, last_used=None, spent=None) for key in known.keys)
        with pytest.raises(PermissionDenied):
            await plane.do(ListKeys(), READER)
        with pytest.raises(ModelNotFound):
            await plane.do(GetEndpoint(name="nobody"), OPERATOR)
        with pytest.raises(Unavailable):
            await plane.do(CreateKey(name="alice"), OPERATOR)
        report = gateway.report()
        told = await plane.do(WatchSnapshot(report=report, after=0, wait_s=0.0), OPERATOR)
        assert told.problem == "the database is away"
        same = WatchSnapshot(report=report, after=told.version, wait_s=0.0)
        assert (await plane.do(same, OPERATOR)).problem == "the database is away"
