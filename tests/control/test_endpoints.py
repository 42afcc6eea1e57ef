"""Run-time endpoints on Ray: made, asked, changed under load and deleted, with no failed request."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EndpointShown,
    EntityState,
    EntityWanted,
    GetEndpoint,
    ListEndpoints,
    ReadLogs,
    UpdateConfig,
    UpdateState,
)
from tests.control.server import MODEL, READY_S, Controlled, run_time_apps
from tests.deploy.load import constant_load, more
from tests.support.invariants import children

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

NAME = "bought"


def units(count: int, version: str = "") -> ConfigWanted:
    entity = EntityWanted(entity_name=MODEL, entity_version=version, provisioned_model_units=count)
    return ConfigWanted(entities=(entity,), traffic={})


async def made(server: Controlled, name: str = NAME) -> EndpointShown:
    """A provisioned endpoint of one unit, which answers."""
    await server.do(CreateEndpoint(name=name, config=units(1), is_provisioned=True))
    return await up(server, name)


async def up(server: Controlled, name: str = NAME) -> EndpointShown:
    """The endpoint, whose update must have succeeded."""
    shown = await server.until_settled(name)
    assert (shown.update, shown.message, shown.pending) == (UpdateState.NOT_UPDATING, "", None)
    assert shown.is_ready
    assert shown.config is not None
    assert {entity.state for entity in shown.config.entities} == {EntityState.READY}
    return shown


async def test_an_endpoint_on_the_operators_replicas(controlled_server: Controlled) -> None:
    wanted = ConfigWanted(entities=(EntityWanted(entity_name=MODEL),), traffic={})
    await controlled_server.do(CreateEndpoint(name="shared", config=wanted, is_provisioned=False))
    over_http = await controlled_server.server.client.get("/api/2.0/serving-endpoints/shared")
    assert over_http.json()["name"] == "shared", over_http.text
    await up(controlled_server, "shared")
    answer = await controlled_server.server.chat("shared", max_tokens=4)
    assert answer.status_code == 200
    assert answer.headers["served-model-name"] == MODEL
    listed = (await controlled_server.do(ListEndpoints())).endpoints
    assert {each.name: each.declared for each in listed} == {MODEL: True, "shared": False}
    await controlled_server.do(DeleteEndpoint(name="shared"))
    assert not await asyncio.to_thread(run_time_apps)


async def test_an_endpoint_of_its_own_changes_under_load_and_goes(controlled_server: Controlled) -> None:
    server = controlled_server
    shown = await made(server)
    assert shown.task == "llm/v1/chat"
    (app,) = await asyncio.to_thread(run_time_apps)
    async with constant_load(server.server, NAME) as log:
        await more(log)
        await server.do(UpdateConfig(name=NAME, config=units(1, version="2")))  # beside it, then instead
        shown = await up(server)
        assert shown.config is not None
        assert shown.config.version == 2
        await more(log)
    log.assert_nothing_was_lost()
    assert {request.entity for request in log.requests} == {MODEL, f"{MODEL}-2"}
    assert log.requests[-1].entity == f"{MODEL}-2"
    async with asyncio.timeout(READY_S):
        while app in await asyncio.to_thread(run_time_apps):
            await asyncio.sleep(0.1)
    logs = await server.do(ReadLogs(name=NAME, entity=f"{MODEL}-2", is_build=True))
    assert "configuration 2 serves" in logs.text
    await server.do(DeleteEndpoint(name=NAME))
    async with asyncio.timeout(READY_S):
        while await asyncio.to_thread(run_time_apps):
            await asyncio.sleep(0.1)
    gone = await server.server.chat(NAME)
    assert gone.status_code == 404


@pytest.mark.full
async def test_its_size_changes_in_place(controlled_server: Controlled) -> None:
    server = controlled_server
    await made(server)
    (app,) = await asyncio.to_thread(run_time_apps)
    (first,) = replicas(app)
    async with constant_load(server.server, NAME) as log:
        await more(log)
        await server.do(UpdateConfig(name=NAME, config=units(2)))
        await up(server)
        assert list(await asyncio.to_thread(run_time_apps)) == [app]
        assert first in replicas(app)
        assert len(replicas(app)) == 2
        await more(log)
    log.assert_nothing_was_lost()
    await server.delete_all()


@pytest.mark.full
async def test_the_control_plane_and_the_controller_are_killed(controlled_server: Controlled) -> None:
    server = controlled_server
    before = await made(server, "kept")
    async with constant_load(server.server, "kept") as log:
        await more(log)
        for process in (*server.processes(), *children("ray::ServeController")):
            process.kill()
        await more(log)
        after = await server.do(GetEndpoint(name="kept"))  # waits for the next control plane
        assert (after.id, after.config is not None) == (before.id, True)
        await server.do(UpdateConfig(name="kept", config=units(2)))
        await up(server, "kept")
        await more(log)
    log.assert_nothing_was_lost()
    await server.delete_all()


@pytest.mark.full
async def test_endpoints_come_back_with_the_cluster(controlled_server: Controlled) -> None:
    server = controlled_server
    before = await made(server, "kept")
    await server.restart()
    async with asyncio.timeout(READY_S):
        while (await server.server.chat("kept", max_tokens=4)).status_code != 200:
            await asyncio.sleep(0.2)
        # That it is ready is told a moment after the first answer.
        while not (after := await server.do(GetEndpoint(name="kept"))).is_ready:
            await asyncio.sleep(0.1)
    assert (after.id, after.config) == (before.id, before.config)
    await server.delete_all()


def replicas(app: str) -> list[psutil.Process]:
    return children(f"ServeReplica:{app}:Model")
