"""Anything of a deployment may change under load without a lost request, as docs/operations.md says."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deploy.deployment import (
    DEMO,
    Deployed,
    Raw,
    app_of,
    deploy_file,
    deployed,
    edited,
    endpoints_of,
)
from tests.deploy.load import CLIENTS, DONE, constant_load, more, nothing_is_lost
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import Cluster

logger = logging.getLogger(__name__)

# A part of each is in test_ab_test.py, for the quick run.
pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("local"), usage) as server:
        yield server


def processes(server: Deployed) -> set[int]:
    return {process.pid for process in server.processes()}


async def test_one_file_over_another_and_back(server: Deployed) -> None:
    local, split = server.raw, deploy_file("ab_test")
    gateways = await server.gateways()
    async with nothing_is_lost(server) as log:
        await server.roll_out(split)
        switched = len(log.requests)
        await more(log, 100)
        assert log.since(switched) == {"demo-chat-1", "demo-chat-2"}
        await server.roll_out(local)
        switched = len(log.requests)
        await more(log)
        assert log.since(switched + CLIENTS) == {DEMO}
    assert await server.gateways() == gateways  # nothing restarts that did not change


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


async def test_new_shares_of_a_split(server: Deployed) -> None:
    await server.roll_out(deploy_file("ab_test"))

    def edit(raw: Raw) -> None:
        endpoints_of(raw)[0]["traffic"] = {"demo-chat-1": 0, "demo-chat-2": 100}

    async with nothing_is_lost(server) as log:
        await server.roll_out(edited(server.raw, edit))
        await server.until_traffic(DEMO, {"demo-chat-1": 0, "demo-chat-2": 100})
        await more(log, CLIENTS)  # those that were under way
        switched = len(log.requests)
        await more(log)
        assert log.since(switched) == {"demo-chat-2"}


def alone_and_restarted(wait_s: float) -> Callable[[Raw], None]:
    """One model without room for a second replica, whose args change with `wait_s`."""

    def edit(raw: Raw) -> None:
        app_of(raw, "system")["args"]["restart_wait_s"] = wait_s
        app = app_of(raw, f"model-{DEMO}")
        app["deployments"][0]["max_surge_percent"] = 0
        app["args"]["engine"]["max_sequences"] = 8

    return edit


def with_sequences(count: int) -> Callable[[Raw], None]:
    def edit(raw: Raw) -> None:
        app_of(raw, f"model-{DEMO}")["args"]["engine"]["max_sequences"] = count

    return edit


async def test_whoever_may_wait_gets_an_answer_of_a_model_that_restarts_and_has_no_sibling(
    server: Deployed,
) -> None:
    await server.roll_out(edited(deploy_file("local"), alone_and_restarted(wait_s=120)))
    before = processes(server)
    async with nothing_is_lost(server):
        await server.deploy(edited(server.raw, with_sequences(9)))  # as `serve deploy` does
        await server.until_running()
    assert len(processes(server) - before) == 1


async def test_whoever_may_not_is_refused_and_told_when_to_come_back(server: Deployed) -> None:
    await server.roll_out(edited(deploy_file("local"), alone_and_restarted(wait_s=0.5)))
    conditions: Counter[tuple[int, str]] = Counter()
    async with constant_load(server) as log:
        await more(log)
        await server.deploy(edited(server.raw, with_sequences(9)))
        async with asyncio.timeout(WAIT_S):
            while not conditions[503, "not ready"] or not conditions[200, "ready"]:
                answer = await server.client.get("/readyz")
                conditions.update([(answer.status_code, answer.json()["status"])])
                await asyncio.sleep(0.05)
        await server.until_running()
        await more(log)
    assert {(request.status, request.end == DONE) for request in log.requests} == {(200, True), (503, False)}
    refused = [request for request in log.requests if request.status == 503]
    assert {request.retry_after for request in refused} == {"2"}
    assert all('"error":{' in request.end and "restarting" in request.end for request in refused)
    logger.info("%s; %s", log.counts.total(), len(refused))


async def test_a_whole_file_at_once_cuts_no_answer_and_refuses_in_words(server: Deployed) -> None:
    """What `serve deploy` does by itself: old models go before the new ones are up."""
    await server.roll_out(deploy_file("local"))
    async with constant_load(server) as log:
        await more(log)
        await server.deploy(deploy_file("ab_test"))
        await server.until_running()
        ready = log.clock()
        await more(log)
    ends = Counter((request.status, request.end == DONE) for request in log.requests)
    logger.info("%s, the longest %.1f s", ends, log.longest_s)
    assert set(ends) <= {(200, True), (503, False)}
    assert all(request.retry_after for request in log.requests if request.status == 503)
    # Those that began before may still wait for the model that went.
    begun_since = [request for request in log.requests if request.started > ready]
    assert begun_since
    assert {request.entity for request in begun_since} <= {"demo-chat-1", "demo-chat-2"}, log.counts
