"""Anything of a deployment may change under load without a lost request, as docs/operations.md says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deploy.answers import settled
from tests.deploy.deployment import (
    DEMO,
    Deployed,
    Raw,
    app_of,
    deploy_file,
    deployed,
    edited,
)
from tests.deploy.load import Log, constant_load, more
from tests.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("local"), usage) as server:
        yield server


@asynccontextmanager
async def nothing_is_lost(server: Deployed) -> AsyncIterator[Log]:
    """A constant load around the block: every answer is whole, and each left one record."""
    before = len(await settled(server))
    async with constant_load(server) as log:
        await more(log)
        yield log
        await more(log)
    print(f"{len(log.requests)} requests, longest {log.longest_s:.1f} s: {dict(log.counts)}")
    log.assert_nothing_was_lost()
    records = (await settled(server))[before:]
    assert [record.outcome for record in records].count("finished") == len(log.requests)


def processes(server: Deployed) -> set[int]:
    return {process.pid for process in server.processes()}


async def test_one_file_over_another_and_back(server: Deployed) -> None:
    local, split = server.raw, deploy_file("ab_test")
    async with nothing_is_lost(server) as log:
        await server.roll_out(split)
        switched = len(log.requests)
        await more(log, 100)
        assert log.since(switched) == {"demo-chat-1", "demo-chat-2"}
        await server.roll_out(local)
        switched = len(log.requests)
        await more(log)
        assert log.since(switched + 8) == {DEMO}


async def test_changed_args_of_a_model_in_place(server: Deployed) -> None:
    def edit(raw: Raw) -> None:
        app_of(raw, f"model-{DEMO}")["args"]["engine"]["max_sequences"] = 7

    async with nothing_is_lost(server):
        before = processes(server)
        await server.roll_out(edited(server.raw, edit))
    assert len(processes(server) - before) == 1


async def test_changed_args_of_the_gateway(server: Deployed) -> None:
    def edit(raw: Raw) -> None:
        app_of(raw, "system")["args"]["max_in_flight"] = 99

    gateways = set(await server.gateways())
    async with nothing_is_lost(server):
        await server.roll_out(edited(server.raw, edit))
    assert not gateways & set(await server.gateways())
