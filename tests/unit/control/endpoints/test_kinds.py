"""An update says anew whether an endpoint has replicas of its own, and nothing that it says is ignored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serve_app.config import ControlConfig
from serve_app.control.endpoints import reconciler
from serve_app.control.plane import ControlPlane
from serve_app.errors import InvalidField
from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    EndpointShown,
    EntityWanted,
    GetEndpoint,
    PatchTags,
    UpdateConfig,
    UpdateState,
)
from tests.support.fake_cluster import OPERATOR, FakeCluster, plane_over

SIZES: list[dict[str, Any]] = [
    {"provisioned_model_units": 1},
    {"workload_size": "Small"},
    {"min_provisioned_throughput": 0, "max_provisioned_throughput": 100},
    {"max_provisioned_concurrency": 4},
]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "BUSY_S", 0.01)
    monkeypatch.setattr(reconciler, "SETTLE_S", 0.0)


def config(**fields: Any) -> ConfigWanted:
    return ConfigWanted(entities=(EntityWanted(entity_name="demo-chat", **fields),), traffic={})


async def settled(plane: ControlPlane) -> EndpointShown:
    async with asyncio.timeout(60):
        while (shown := await plane.do(GetEndpoint(name="mine"), OPERATOR)).update is UpdateState.IN_PROGRESS:
            await asyncio.sleep(0.01)
    return shown


async def updated(plane: ControlPlane, **fields: Any) -> EndpointShown:
    await plane.do(UpdateConfig(name="mine", config=config(**fields)), OPERATOR)
    return await settled(plane)


async def test_sizes_make_an_endpoint_provisioned_and_without_them_it_is_not(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await plane.do(CreateEndpoint(name="mine", config=config(), is_provisioned=False), OPERATOR)
        assert (await settled(plane)).kind == "pay_per_token"
        for size in SIZES:
            shown = await updated(plane, **size)
            assert (shown.kind, shown.update) == ("provisioned_throughput", UpdateState.NOT_UPDATING)
            (served,) = gateway.endpoints["mine"]["served_entities"]
            assert served["app"].startswith("rt-mine")
            assert gateway.endpoints["mine"]["kind"] == "provisioned_throughput"
            assert served["app"] in cluster.seen
            shown = await updated(plane)
            assert (shown.kind, shown.update) == ("pay_per_token", UpdateState.NOT_UPDATING)
            (served,) = gateway.endpoints["mine"]["served_entities"]
            assert (served["app"], served["max_provisioned_throughput"]) == ("model-demo-chat", None)
            async with asyncio.timeout(60):
                while cluster.seen:  # what was bought goes
                    await asyncio.sleep(0.01)


async def test_the_former_kind_stays_where_the_new_one_does_not_come_up(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await plane.do(CreateEndpoint(name="mine", config=config(), is_provisioned=False), OPERATOR)
        await settled(plane)
        cluster.failing["2"] = "it has no weights"
        shown = await updated(plane, entity_version="2", provisioned_model_units=1)
        assert (shown.kind, shown.update) == ("pay_per_token", UpdateState.UPDATE_FAILED)
        assert gateway.endpoints["mine"]["kind"] == "pay_per_token"


async def test_a_model_that_nobody_runs_is_refused_in_words_of_what_was_asked(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        await plane.do(CreateEndpoint(name="mine", config=config(), is_provisioned=False), OPERATOR)
        await settled(plane)
        for size in ({}, *SIZES):
            entity = EntityWanted(entity_name="unheard-of", **size)
            wanted = ConfigWanted(entities=(entity,), traffic={})
            with pytest.raises(InvalidField) as caught:
                await plane.do(UpdateConfig(name="mine", config=wanted), OPERATOR)
            assert ("say how many" in str(caught.value)) is not bool(size)


async def test_a_pending_configuration_began_when_it_was_asked_for(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.held.add("2")
    async with plane_over(tmp_path, cluster) as (plane, _):
        await plane.do(CreateEndpoint(name="mine", config=config(), is_provisioned=False), OPERATOR)
        await settled(plane)
        wanted = config(entity_version="2", provisioned_model_units=1)
        since = (await plane.do(UpdateConfig(name="mine", config=wanted), OPERATOR)).pending_since
        tagged = await plane.do(PatchTags(name="mine", add={"team": "sea"}), OPERATOR)
        assert since == tagged.pending_since < tagged.updated


async def test_replicas_of_several_machines_have_the_bundles_of_their_model(tmp_path: Path) -> None:
    offered = {
        "config": {"name": "wide", "source": "no/where", "tensor_parallel": 2},
        "placement_group_bundles": [{"CPU": 1}, {"CPU": 1}],
        "placement_group_strategy": "STRICT_SPREAD",
    }
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster, ControlConfig.model_validate({"models": [offered]})) as (
        plane,
        _,
    ):
        entity = EntityWanted(entity_name="wide", provisioned_model_units=2)
        wanted = ConfigWanted(entities=(entity,), traffic={})
        await plane.do(CreateEndpoint(name="mine", config=wanted, is_provisioned=True), OPERATOR)
        await settled(plane)
    (spec,) = cluster.specs.values()
    assert (spec.bundles, spec.strategy) == (({"CPU": 1.0}, {"CPU": 1.0}), "STRICT_SPREAD")
    assert spec.all_cpus == 2.0
