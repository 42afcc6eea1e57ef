"""Endpoints over their whole life: the real control plane on SQLite, over a cluster that runs nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_app.config import ControlConfig, ModelConfig, ProvisionedConfig
from serve_app.control.endpoints import reconciler
from serve_app.control.endpoints.cluster import AppSeen, AppStatus, NodeRoom, Offer, Room
from serve_app.control.plane import ControlPlane
from serve_app.errors import AlreadyExists, Conflict, InvalidField, ModelNotFound, ServeError
from serve_app.types import UsageRecord
from serve_app.types.control import (
    Command,
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EndpointShown,
    EntityState,
    EntityWanted,
    GetEndpoint,
    ListEndpoints,
    PatchTags,
    PutAiGateway,
    ReadLogs,
    ReportUsage,
    ShipUsage,
    UpdateConfig,
    UpdateState,
)
from tests.support.fake_cluster import EMBEDDER, OPERATOR, FakeCluster, FakeGateway, plane_over

CHAT = "demo-chat"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "BUSY_S", 0.01)
    monkeypatch.setattr(reconciler, "SETTLE_S", 0.0)


def wanted(*entities: EntityWanted, **traffic: int) -> ConfigWanted:
    return ConfigWanted(entities=entities, traffic=traffic)


def entity(version: str = "", units: int | None = None, **fields: Any) -> EntityWanted:
    return EntityWanted(entity_name=CHAT, entity_version=version, provisioned_model_units=units, **fields)


async def create(
    plane: ControlPlane, config: ConfigWanted, name: str = "mine", **fields: Any
) -> EndpointShown:
    is_provisioned = any(each.provisioned_model_units for each in config.entities)
    command = CreateEndpoint(name=name, config=config, is_provisioned=is_provisioned, **fields)
    return await plane.do(command, OPERATOR)


async def settled(plane: ControlPlane, name: str = "mine") -> EndpointShown:
    """The endpoint, once its update is over."""
    async with asyncio.timeout(60):
        while (shown := await plane.do(GetEndpoint(name=name), OPERATOR)).update is UpdateState.IN_PROGRESS:
            await asyncio.sleep(0.01)
    return shown


async def until_running(cluster: FakeCluster, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while len(cluster.seen) != count:
            await asyncio.sleep(0.01)
    return list(cluster.seen)


def apps_of(gateway: FakeGateway, name: str = "mine") -> list[str]:
    return [entity["app"] for entity in gateway.endpoints[name]["served_entities"]]


async def test_a_pay_per_token_endpoint_uses_replicas_that_run_already(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        first = await create(plane, wanted(entity()))
        assert (first.update, first.is_ready, first.config) == (UpdateState.IN_PROGRESS, False, None)
        shown = await settled(plane)
        assert (shown.update, shown.is_ready) == (UpdateState.NOT_UPDATING, True)
        assert apps_of(gateway) == ["model-demo-chat"]
        assert cluster.calls == []


async def test_a_provisioned_endpoint_from_creation_to_deletion(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await create(plane, wanted(entity(units=1)))
        shown = await settled(plane)
        assert shown.task == "llm/v1/chat"
        assert shown.config is not None
        assert shown.config.entities[0].state is EntityState.READY
        (app,) = await until_running(cluster, 1)
        assert app.startswith("rt-mine-demo-chat-r")

        await plane.do(UpdateConfig(name="mine", config=wanted(entity(units=3))), OPERATOR)
        shown = await settled(plane)
        assert shown.config is not None
        assert (shown.config.version, apps_of(gateway)) == (2, [app])  # in place

        await plane.do(UpdateConfig(name="mine", config=wanted(entity("2", 1))), OPERATOR)
        await settled(plane)
        (newer,) = await until_running(cluster, 1)
        assert apps_of(gateway) == [newer]
        assert cluster.calls == [
            f"deploy {app} 1-1",
            f"deploy {app} 3-3",
            f"deploy {newer} 1-1",
            f"delete {app}",
        ]
        await plane.do(DeleteEndpoint(name="mine"), OPERATOR)
        await until_running(cluster, 0)
        with pytest.raises(ModelNotFound):
            await plane.do(GetEndpoint(name="mine"), OPERATOR)
        again = await create(
            plane, wanted(entity(units=1))
        )  # the name is free, the id and the application are not
        assert again.id != shown.id
        await settled(plane)
        assert await until_running(cluster, 1) not in ([app], [newer])


async def test_what_serves_goes_on_until_the_new_configuration_is_up(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await create(plane, wanted(entity(units=1)))
        await settled(plane)
        (old,) = await until_running(cluster, 1)
        cluster.held.add("2")
        await plane.do(UpdateConfig(name="mine", config=wanted(entity("2", 1))), OPERATOR)
        await until_running(cluster, 2)
        shown = await plane.do(GetEndpoint(name="mine"), OPERATOR)
        assert shown.is_ready
        assert shown.pending is not None
        assert shown.pending.entities[0].state is EntityState.CREATING
        assert apps_of(gateway) == [old]
        with pytest.raises(Conflict, match="is being updated"):
            await plane.do(UpdateConfig(name="mine", config=wanted(entity(units=2))), OPERATOR)
        cluster.held.clear()
        cluster.seen |= {app: replace(seen, status=AppStatus.UP) for app, seen in cluster.seen.items()}
        await settled(plane)
        assert apps_of(gateway) != [old]
        assert old not in await until_running(cluster, 1)


async def test_a_configuration_that_fails_leaves_the_former_one_and_says_what_to_do(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await create(plane, wanted(entity(units=1)))
        await settled(plane)
        (old,) = await until_running(cluster, 1)
        cluster.failing["2"] = "no safetensors in that folder"
        await plane.do(UpdateConfig(name="mine", config=wanted(entity("2", 1))), OPERATOR)
        shown = await settled(plane)
        assert shown.update is UpdateState.UPDATE_FAILED
        assert shown.message == (
            "served entity 'demo-chat-2' failed: no safetensors in that folder; what served before still "
            "does. Correct it, and update again"
        )
        assert shown.is_ready
        assert await until_running(cluster, 1) == [old]
        assert apps_of(gateway) == [old]
        await plane.do(UpdateConfig(name="mine", config=wanted(entity(units=2))), OPERATOR)
        assert (await settled(plane)).update is UpdateState.NOT_UPDATING


async def test_a_configuration_that_does_not_come_up_in_time_fails_whatever_the_clock_of_the_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    cluster.held.add("2")
    async with plane_over(tmp_path, cluster, ControlConfig(start_timeout_s=600)) as (plane, _):
        await create(plane, wanted(entity("2", 1)))
        await until_running(cluster, 1)
        await asyncio.sleep(0.1)
        assert (await plane.do(GetEndpoint(name="mine"), OPERATOR)).update is UpdateState.IN_PROGRESS
        real = time.time
        for jump_s in (3_600, -3_600):
            monkeypatch.setattr(time, "time", lambda: real() + jump_s)  # noqa: B023
            plane.endpoints.reconciler.wake()
            await asyncio.sleep(0.1)
            assert (await plane.do(GetEndpoint(name="mine"), OPERATOR)).update is UpdateState.IN_PROGRESS
        later = time.monotonic() + 601
        monkeypatch.setattr(plane.endpoints.reconciler, "_clock", lambda: later)
        plane.endpoints.reconciler.wake()
        shown = await settled(plane)
        assert shown.update is UpdateState.UPDATE_FAILED
        assert "did not come up within 600 s: waits for a node; nothing serves yet" in shown.message
        await until_running(cluster, 0)


async def test_an_update_is_over_only_when_every_gateway_follows(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        gateway.waiting = {"mine": ("rt-mine",)}
        await gateway.poll()
        await create(plane, wanted(entity(units=1)))
        async with asyncio.timeout(60):
            while "mine" not in gateway.endpoints:
                await asyncio.sleep(0.01)
        shown = await plane.do(GetEndpoint(name="mine"), OPERATOR)
        assert shown.update is UpdateState.IN_PROGRESS
        gateway.waiting = {}
        await gateway.poll()
        assert (await settled(plane)).update is UpdateState.NOT_UPDATING


async def test_a_control_plane_that_dies_goes_on_where_it_was(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.held.add("2")
    async with plane_over(tmp_path, cluster) as (plane, _):
        made = await create(plane, wanted(entity(units=1)))
        await settled(plane)
        await plane.do(UpdateConfig(name="mine", config=wanted(entity("2", 1))), OPERATOR)
        await until_running(cluster, 2)
    cluster.held.clear()
    cluster.seen.clear()  # the whole cluster was lost with it
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        shown = await settled(plane)
        assert (shown.id, shown.update) == (made.id, UpdateState.NOT_UPDATING)
        assert await until_running(cluster, 1) == apps_of(gateway)


async def test_orphans_are_collected_and_the_operators_applications_are_not(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.seen = {
        "rt-of-another-database-r3": AppSeen(AppStatus.UP, "", (1, 1)),
        "model-demo-chat": AppSeen(AppStatus.UP, "", (1, 1)),
    }
    async with plane_over(tmp_path, cluster):
        assert await until_running(cluster, 1) == ["model-demo-chat"]


async def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster) as (plane, _):
        await create(plane, wanted(entity(units=1)))
        await settled(plane)
        cluster.is_away = True
        with pytest.raises(ServeError, match="the cluster does not answer"):
            await plane.do(UpdateConfig(name="mine", config=wanted(entity(units=2))), OPERATOR)
        cluster.is_away = False
        await plane.do(UpdateConfig(name="mine", config=wanted(entity(units=2))), OPERATOR)
        assert (await settled(plane)).update is UpdateState.NOT_UPDATING


async def test_what_the_deploy_file_declares_is_shown_and_not_changed(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        (shown,) = (await plane.do(ListEndpoints(), OPERATOR)).endpoints
        assert (shown.name, shown.declared, shown.is_ready) == (CHAT, True, True)
        assert shown == await plane.do(GetEndpoint(name=CHAT), OPERATOR)
        commands: tuple[Command[Any], ...] = (
            UpdateConfig(name=CHAT, config=wanted(entity())),
            DeleteEndpoint(name=CHAT),
            PutAiGateway(name=CHAT, settings={}),
            PatchTags(name=CHAT),
        )
        for command in commands:
            with pytest.raises(Conflict, match="declared in the deploy file, which alone changes it"):
                await plane.do(command, OPERATOR)
        with pytest.raises(AlreadyExists):
            await create(plane, wanted(entity()), CHAT)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            wanted(EntityWanted(entity_name="nobody")),
            r"served_entities\[0\].entity_name: .*there is demo-chat",
        ),
        (wanted(entity("7", 1)), "no such model; there is demo-chat, demo-chat version 2"),
        (wanted(entity(units=1), entity("2", 1)), "traffic_config: the percentages add up to 0"),
        (wanted(entity(units=1), entity(units=1)), "is there twice"),
        (wanted(entity(units=1), other=100), "'other' is no served entity; there is: demo-chat"),
        (wanted(entity(units=0)), "provisioned_model_units: must be 1 or more"),
        (wanted(entity(units=99)), "takes 99 replicas; at most 32 are allowed"),
        (wanted(entity(units=40, workload_size="Small")), "say the size in one way"),
        (wanted(entity(units=20)), "need 20 CPUs and 16 are free"),
        (
            wanted(entity("2", units=2)),
            "a replica of 'demo-chat' needs at least 3.0 GiB of memory for its weights and cache, 2 of them "
            "are to start, and the node with the most has free 5.0 GiB; choose",
        ),
        (wanted(), "must have 1 to 10 entries"),
    ],
)
async def test_what_cannot_come_up_is_refused_at_once(
    tmp_path: Path, config: ConfigWanted, words: str
) -> None:
    offers = (
        Offer(config=ModelConfig(name=CHAT), app="model-demo-chat", is_shared=True, num_cpus=1),
        Offer(config=ModelConfig(name=CHAT, version="2")),
    )
    cluster = FakeCluster(offers, Room({"CPU": 16.0}, (NodeRoom(5 * 2**30), NodeRoom(2 * 2**30))))
    cluster.memory = {"2": 3 * 2**30}
    async with plane_over(tmp_path, cluster) as (plane, _):
        is_provisioned = any(each.provisioned_model_units is not None for each in config.entities)
        command = CreateEndpoint(name="mine", config=config, is_provisioned=is_provisioned)
        with pytest.raises(InvalidField, match=words):
            await plane.do(command, OPERATOR)
        assert [each.name for each in (await plane.do(ListEndpoints(), OPERATOR)).endpoints] == [CHAT]
        assert cluster.calls == []


@pytest.mark.parametrize("task", ["llm/v1/embeddings", "llm/v1/nothing"])
async def test_a_task_that_the_model_has_not_is_refused(tmp_path: Path, task: str) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        with pytest.raises(InvalidField, match="task: "):
            await create(plane, wanted(entity()), task=task)


async def test_reports_leave_out_an_endpoint_whose_usage_is_not_tracked(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        await create(plane, wanted(entity(units=1)))
        records = tuple(
            UsageRecord(
                id=name,
                key_id="k",
                endpoint=name,
                entity="e",
                kind="pay_per_token",
                route="/",
                started=1.0,
                outcome="finished",
            )
            for name in ("mine", CHAT)
        )
        await plane.do(ShipUsage(ended=records), OPERATOR)

        async def reported() -> list[tuple[str, ...]]:
            report = await plane.do(ReportUsage(by=("endpoint",)), OPERATOR)
            return [row.group for row in report.rows]

        assert await reported() == [(CHAT,), ("mine",)]
        for enabled, listed in ((False, [(CHAT,)]), (True, [(CHAT,), ("mine",)])):
            switch = {"usage_tracking_config": {"enabled": enabled}}
            await plane.do(PutAiGateway(name="mine", settings=switch), OPERATOR)
            assert await reported() == listed


async def test_settings_tags_and_logs(tmp_path: Path) -> None:
    async with plane_over(tmp_path, FakeCluster()) as (plane, gateway):
        await create(plane, wanted(entity(units=1)), tags={"team": "a"})
        await settled(plane)
        limits = {"rate_limits": [{"calls": 5, "renewal_period": "minute"}]}
        await plane.do(PutAiGateway(name="mine", settings=limits), OPERATOR)
        put = PutAiGateway(name="mine", settings={"usage_tracking_config": {"enabled": True}})
        shown = await plane.do(put, OPERATOR)
        assert set(shown.ai_gateway) == {"rate_limits", "usage_tracking_config"}
        shown = await plane.do(PutAiGateway(name="mine", settings={"rate_limits": None}), OPERATOR)
        assert set(shown.ai_gateway) == {"usage_tracking_config"}
        with pytest.raises(InvalidField, match="rate_limits"):
            await plane.do(PutAiGateway(name="mine", settings={"rate_limits": [{}]}), OPERATOR)
        async with asyncio.timeout(60):
            while gateway.endpoints["mine"]["ai_gateway"] != shown.ai_gateway:
                await asyncio.sleep(0.01)
        patched = await plane.do(PatchTags(name="mine", add={"b": ""}, delete=("team",)), OPERATOR)
        assert patched.tags == {"b": ""}
        build = await plane.do(ReadLogs(name="mine", entity=CHAT, is_build=True), OPERATOR)
        assert "created with configuration 1" in build.text
        assert "configuration 1 serves" in build.text
        own = await plane.do(ReadLogs(name="mine", entity=CHAT), OPERATOR)
        assert own.text.startswith("log of rt-mine")
        with pytest.raises(ModelNotFound, match="there is: demo-chat"):
            await plane.do(ReadLogs(name="mine", entity="other"), OPERATOR)


async def test_settings_that_do_not_fit_the_task_are_refused(tmp_path: Path) -> None:
    """Gateways would drop an endpoint that has them."""
    cluster = FakeCluster()
    cluster.model = EMBEDDER
    checked = {"guardrails": {"output": {"safety": False, "invalid_keywords": ["secret"]}}}
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        await create(plane, wanted(entity("2", 1)), ai_gateway=checked)
        shown = await settled(plane)
        assert shown.update is UpdateState.UPDATE_FAILED
        assert "vectors have no text" in shown.message
        await create(plane, wanted(entity("2", 1)), "theirs")
        assert (await settled(plane, "theirs")).task == "llm/v1/embeddings"
        with pytest.raises(InvalidField, match="vectors have no text"):
            await plane.do(PutAiGateway(name="theirs", settings=checked), OPERATOR)
        assert (await plane.do(GetEndpoint(name="theirs"), OPERATOR)).ai_gateway == {}
        assert gateway.endpoints["theirs"]["task"] == "llm/v1/embeddings"


async def test_a_model_that_cannot_be_deployed_stops_no_other_endpoint(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.broken.add("2")
    async with plane_over(tmp_path, cluster) as (plane, _):
        await create(plane, wanted(entity("2", 1)), "first")
        await create(plane, wanted(entity(units=1)), "second")
        assert (await settled(plane, "second")).is_ready


async def test_bought_tokens_become_replicas_and_a_budget(tmp_path: Path) -> None:
    bought = ProvisionedConfig(max_throughput=1000, replica_throughput=400)
    offer = Offer(config=ModelConfig(name=CHAT, provisioned=bought), app="other", replica_throughput=400.0)
    cluster = FakeCluster((offer,))
    async with plane_over(tmp_path, cluster) as (plane, gateway):
        config = wanted(entity(min_provisioned_throughput=400, max_provisioned_throughput=1000))
        await plane.do(CreateEndpoint(name="mine", config=config, is_provisioned=True), OPERATOR)
        await settled(plane)
        (made,) = gateway.endpoints["mine"]["served_entities"]
        assert cluster.specs[made["app"]].size == (1, 3)
        assert (made["min_provisioned_throughput"], made["max_provisioned_throughput"]) == (400, 1000)
