"""`serve-app endpoints promote` while a rollout runs: over the routes and the real control plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serve_app.control.endpoints import reconciler
from serve_app.control.plane import ControlPlane
from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    EntityWanted,
    GetEndpoint,
    GetRollout,
    RolloutShown,
    RolloutState,
    StartRollout,
    UpdateState,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, plane_over
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served

OLD, NEW = "demo-chat", "demo-chat-2"


@dataclass
class Talk:
    """An endpoint with two entities, of which the old one has all traffic."""

    plane: ControlPlane
    invoke: Any
    url: str

    async def promote(self, entity: str) -> str:
        done = await asyncio.to_thread(self.invoke, "endpoints", "promote", "talk", entity, "--url", self.url)
        assert done.exit_code == 0, done.output
        return str(done.stderr + done.stdout)

    async def roll_out(self, *steps: int) -> None:
        await self.plane.do(StartRollout(endpoint="talk", entity=NEW, steps=steps), OPERATOR)

    async def rollout(self) -> RolloutShown:
        return await self.plane.do(GetRollout(endpoint="talk"), OPERATOR)

    async def traffic(self) -> dict[str, int]:
        shown = await self.plane.do(GetEndpoint(name="talk"), OPERATOR)
        assert shown.update is UpdateState.NOT_UPDATING
        assert shown.config is not None
        return {name: share for name, share in shown.config.traffic.items() if share}


@pytest_asyncio.fixture
async def talk(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talk]:
    monkeypatch.setattr(reconciler, "BUSY_S", 0.01)
    monkeypatch.setattr("serve_app.cli.endpoints.api.POLL_S", 0.05)
    entities = tuple(
        EntityWanted(entity_name="demo-chat", entity_version=version, provisioned_model_units=1)
        for version in ("", "2")
    )
    wanted = ConfigWanted(entities=entities, traffic={OLD: 100, NEW: 0})
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        await plane.do(CreateEndpoint(name="talk", config=wanted, is_provisioned=True), OPERATOR)
        async with asyncio.timeout(60):
            while (shown := await plane.do(GetEndpoint(name="talk"), OPERATOR)).update is (
                UpdateState.IN_PROGRESS
            ):
                await asyncio.sleep(0.01)
        assert shown.update is UpdateState.NOT_UPDATING
        async with served(fake_app(FakeBackend(), management=plane)) as (host, port):
            yield Talk(plane, invoke, f"http://{host}:{port}")


@pytest.mark.parametrize("steps", [(5, 100), (100,)])  # the last step has all traffic already
async def test_the_rollouts_entity_is_promoted_and_the_rollout_is_done(
    talk: Talk, steps: tuple[int, ...]
) -> None:
    await talk.roll_out(*steps)
    said = await talk.promote(NEW)
    assert f"the rollout to {NEW} ends" in said
    assert (await talk.rollout()).state is RolloutState.DONE
    assert await talk.traffic() == {NEW: 100}


async def test_another_entity_is_promoted_and_the_rollout_stops(talk: Talk) -> None:
    await talk.roll_out(25, 100)
    said = await talk.promote(OLD)
    assert f"the rollout to {NEW} ends" in said
    shown = await talk.rollout()
    assert (shown.state, "somebody else" in shown.message) == (RolloutState.STOPPED, True)
    assert await talk.traffic() == {OLD: 100}


async def test_without_a_rollout_nothing_is_said_of_one(talk: Talk) -> None:
    assert "rollout" not in await talk.promote(NEW)
    assert await talk.traffic() == {NEW: 100}
