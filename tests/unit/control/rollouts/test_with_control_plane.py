"""Rollouts with the whole control plane: over the ledger and the registry, seen by a gateway."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from serve_app.control.plane import ControlPlane
from serve_app.errors import Conflict, InvalidField
from serve_app.types import UsageRecord
from serve_app.types.control import (
    CompareEntities,
    ConfigWanted,
    CreateEndpoint,
    EntityWanted,
    GetEndpoint,
    GetRollout,
    GiveFeedback,
    PutShadow,
    RolloutShown,
    RolloutState,
    ShipUsage,
    StartRollout,
    UpdateState,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, FakeGateway, plane_over

START = StartRollout(endpoint="talk", entity="new", steps=(20, 100), interval_s=60.0)
ENTITIES = tuple(
    EntityWanted(entity_name="demo-chat", entity_version=version, name=name, provisioned_model_units=1)
    for version, name in (("", "old"), ("2", "new"))
)


async def make(plane: ControlPlane) -> None:
    """The endpoint `talk`, with two entities."""
    wanted = ConfigWanted(entities=ENTITIES, traffic={"old": 100, "new": 0})
    await plane.do(CreateEndpoint(name="talk", config=wanted, is_provisioned=True), OPERATOR)
    async with asyncio.timeout(60):
        while True:
            shown = await plane.do(GetEndpoint(name="talk"), OPERATOR)
            if shown.update is not UpdateState.IN_PROGRESS:
                break
            await asyncio.sleep(0.02)
    assert shown.update is UpdateState.NOT_UPDATING, shown.message


async def traffic_is(gateway: FakeGateway, traffic: dict[str, int]) -> None:
    """Once the gateway has this split."""
    async with asyncio.timeout(60):
        while {k: v for k, v in gateway.endpoints["talk"]["traffic"].items() if v} != traffic:
            await asyncio.sleep(0.01)


def record(started: float, entity: str = "new", **fields: Any) -> UsageRecord:
    plain: dict[str, Any] = {
        "key_id": "alice",
        "endpoint": "talk",
        "kind": "",
        "route": "/v1/chat/completions",
    }
    plain |= {"id": secrets.token_hex(16), "outcome": "finished", "status": 200, "total_s": 1.0}
    return UsageRecord(**{**plain, "entity": entity, "started": started, **fields})


async def look(plane: ControlPlane) -> RolloutShown:
    await plane.rollouts.look()
    return await plane.do(GetRollout(endpoint="talk"), OPERATOR)


async def test_a_bad_entity_is_moved_back_and_a_good_one_arrives(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await make(plane)
        now = time.time()
        plane.rollouts._clock = lambda: now
        await plane.do(START, OPERATOR)
        await traffic_is(gateway, {"old": 80, "new": 20})
        bad = [record(now, outcome="failed", status=500) for _ in range(8)]
        bad += [record(now) for _ in range(12)] + [record(now, "old", failed_over=("new",)) for _ in range(4)]
        await plane.do(ShipUsage(ended=tuple(bad)), OPERATOR)
        back = await look(plane)
        assert back.state is RolloutState.ROLLED_BACK
        assert "failed in 12 of 24" in back.message
        await traffic_is(gateway, {"old": 100})

        now += 1
        await plane.do(START, OPERATOR)
        for state, step in ((RolloutState.RUNNING, 1), (RolloutState.DONE, 1)):
            await plane.do(ShipUsage(ended=tuple(record(now) for _ in range(30))), OPERATOR)
            now += 61
            shown = await look(plane)
            assert (shown.state, shown.step) == (state, step)
        await traffic_is(gateway, {"new": 100})


async def test_a_rollout_survives_the_control_plane(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, _):
        await make(plane)
        await plane.do(START, OPERATOR)
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await traffic_is(gateway, {"old": 80, "new": 20})
        records = (record(time.time(), outcome="failed", status=503) for _ in range(10))
        await plane.do(ShipUsage(ended=tuple(records)), OPERATOR)
        assert (await look(plane)).state is RolloutState.ROLLED_BACK
        await traffic_is(gateway, {"old": 100})


async def test_a_shadow_reaches_gateways(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await make(plane)
        await plane.do(PutShadow(endpoint="talk", shadow={"entity": "new", "percentage": 30}), OPERATOR)
        shadow = (await plane.do(GetEndpoint(name="talk"), OPERATOR)).shadow
        assert shadow == {"entity": "new", "percentage": 30, "max_concurrent": 8}
        async with asyncio.timeout(60):
            while "shadow" not in gateway.endpoints["talk"]:
                await asyncio.sleep(0.01)
        assert gateway.endpoints["talk"]["shadow"]["percentage"] == 30
        with pytest.raises(InvalidField, match="no served entity"):
            await plane.do(PutShadow(endpoint="talk", shadow={"entity": "x", "percentage": 1}), OPERATOR)
        copy = record(time.time(), shadow=True)
        await plane.do(ShipUsage(ended=(copy,)), OPERATOR)
        report = await plane.do(CompareEntities(endpoint="talk"), OPERATOR)
        assert {(each.entity, each.shadow): each.requests for each in report.entities} == {
            ("old", False): 0, ("new", False): 0, ("new", True): 1,
        }  # fmt: skip


async def test_declared_endpoints_are_compared_and_not_changed(tmp_path: Path) -> None:
    entities = [{"model": "demo-chat", "name": "a"}, {"model": "demo-chat", "version": "2", "name": "b"}]
    declared = {
        "endpoints": [{"name": "demo-chat", "served_entities": entities, "traffic": {"a": 50, "b": 50}}]
    }
    async with plane_over(tmp_path, FakeCluster(), declared=declared) as (plane, _):
        with pytest.raises(Conflict, match="declared in the deploy file"):
            await plane.do(StartRollout(endpoint="demo-chat", entity="b"), OPERATOR)
        with pytest.raises(Conflict, match="declared in the deploy file"):
            await plane.do(PutShadow(endpoint="demo-chat", shadow=None), OPERATOR)
        own = record(5.0, "b", endpoint="demo-chat")
        await plane.do(ShipUsage(ended=(own,)), OPERATOR)
        judged = GiveFeedback(request_id=f"req_{own.id}", metric="thumbs", value=1.0, key_id="alice")
        await plane.do(judged, OPERATOR)
        report = await plane.do(CompareEntities(endpoint="demo-chat", metric="thumbs"), OPERATOR)
        assert [(each.entity, each.requests) for each in report.entities] == [("a", 0), ("b", 1)]
        assert report.entities[1].feedback["thumbs"].mean == 1.0
