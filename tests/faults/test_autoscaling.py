"""A model that sleeps, on real Ray: it wakes up for requests, loses none of them, and sleeps again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from serve_app.config import EngineConfig, ModelConfig
from serve_app.deployments.build import system_app
from serve_app.deployments.model.deployment import BY_LOAD, model_deployment
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.rules import app_name
from tests.support.ray_cluster import ROOT, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

MODEL = "sleeper"
BATCH, QUEUE = 10, 40  # what a gateway holds back for a replica that starts: 50 requests
WAIT_S = 120.0
QUIET_S = 2.0  # longer than Serve's controller takes for any decision
AUTOSCALING = {
    "min_replicas": 0,
    "max_replicas": 1,
    "upscale_delay_s": 1,
    "downscale_delay_s": 2,
    "look_back_period_s": 1,
    "metrics_interval_s": 0.25,
    "policy": {"policy_function": BY_LOAD},
}


class Sleeper:
    """The model behind its gateway, and how many replicas it has."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def ask(self, number: int) -> httpx.Response:
        body = {"model": MODEL, "prompt": f"{number} and", "max_tokens": 8, "ignore_eos": True, "seed": 1}
        return await self.client.post("/v1/completions", json=body)

    async def at_once(self, count: int) -> list[httpx.Response]:
        return await asyncio.gather(*map(self.ask, range(count)))

    async def replicas(self) -> dict[str, int]:
        """Replicas by state; empty while it sleeps."""
        from ray import serve

        app = (await asyncio.to_thread(serve.status)).applications[app_name(MODEL)]
        return {
            str(state): count
            for each in app.deployments.values()
            for state, count in each.replica_states.items()
        }

    async def until(self, condition: Callable[[dict[str, int]], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition(await self.replicas()):
                await asyncio.sleep(0.1)

    async def asleep(self) -> None:
        await self.until(lambda replicas: not replicas)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sleeper(ray_cluster: Cluster) -> AsyncIterator[Sleeper]:
    """The gateway was there first, and has looked for the model since."""
    from ray import serve

    engine = EngineConfig(
        max_sequences=BATCH, max_waiting=QUEUE, kv_cache_bytes=16 * 2**20, max_model_len=256
    )
    config = ModelConfig(name=MODEL, source="demo:demo-chat", dtype="float32", threads=1, engine=engine)
    model = model_deployment(config).options(autoscaling_config=AUTOSCALING, health_check_period_s=1)
    apps: list[tuple[Any, str, str | None]] = [
        (system_app([Endpoint(name=MODEL)]), "system", "/"),
        (model.bind(config), app_name(MODEL), None),
    ]
    for app, name, route in apps:
        await asyncio.to_thread(serve.run, app, name=name, route_prefix=route)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=ray_cluster.url, timeout=WAIT_S, limits=limits) as client:
        async with asyncio.timeout(WAIT_S):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
        yield Sleeper(client)
    for _, name, _ in apps:
        await asyncio.to_thread(serve.delete, name)


async def test_a_gateway_that_finds_it_lists_it_and_watches_it_does_not_wake_it(sleeper: Sleeper) -> None:
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        assert await sleeper.replicas() == {}
        for path in ("/readyz", "/metrics", "/v1/models"):
            assert (await sleeper.client.get(path)).status_code == 200


@pytest.mark.full
async def test_all_requests_that_came_while_it_slept_are_answered_and_it_sleeps_again(
    sleeper: Sleeper,
) -> None:
    """From 0 to 1 to 0, twice: the gateway does not know the model yet, then it does."""
    for _ in range(2):
        await sleeper.asleep()
        answers = await sleeper.at_once(BATCH + QUEUE)
        assert [answer.status_code for answer in answers] == [200] * (BATCH + QUEUE)
        assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {8}
        assert (await sleeper.replicas()).get("RUNNING") == 1
    await sleeper.asleep()


@pytest.mark.full
async def test_more_than_a_replica_takes_is_refused_while_it_starts_and_the_rest_answered(
    sleeper: Sleeper,
) -> None:
    await sleeper.asleep()
    answers = await sleeper.at_once(BATCH + QUEUE + 10)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) in (10, 11)  # what the gateway itself asks the model may take a place
    assert {answer.status_code for answer in refused} == {503}
    assert all("retry-after" in answer.headers for answer in refused)


@pytest.mark.full
async def test_a_request_whose_time_is_over_before_the_model_woke_is_told_so(sleeper: Sleeper) -> None:
    await sleeper.asleep()
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 4, "timeout": 0.3}
    answer = await sleeper.client.post("/v1/completions", json=body)
    assert answer.status_code == 504
    assert (await sleeper.ask(1)).status_code == 200  # the model came up all the same


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_replicas_follow_the_load_over_two_nodes_and_no_request_is_lost() -> None:
    """The whole of docs/autoscaling.md, on a cluster of its own."""
    command = [sys.executable, str(ROOT / "benchmarks" / "autoscaling.py")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ran = await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, timeout=590
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
