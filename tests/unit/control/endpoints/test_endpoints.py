"""Endpoints over their whole life, with the real control plane on SQLite and a cluster that runs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve_app.control.plane import ControlPlane
from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    EndpointShown,
    EntityWanted,
    GetEndpoint,
    UpdateState,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, plane_over

pytestmark = pytest.mark.timeout(60)


async def settled(plane: ControlPlane, name: str) -> EndpointShown:
    async with asyncio.timeout(20):
        while (shown := await plane.do(GetEndpoint(name=name), OPERATOR)).update is UpdateState.IN_PROGRESS:
            await asyncio.sleep(0.02)
    return shown


async def test_an_endpoint_on_the_operators_replicas(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        wanted = ConfigWanted(entities=(EntityWanted(entity_name="demo-chat"),), traffic={})
        await plane.do(CreateEndpoint(name="shared", config=wanted, is_provisioned=False), OPERATOR)
        shown = await settled(plane, "shared")
        assert shown.update is UpdateState.NOT_UPDATING
        assert shown.is_ready
        assert gateway.endpoints["shared"]["served_entities"][0]["app"] == "model-demo-chat"
