"""Streams over HTTP, through HAProxy and the gateway, when either end goes away. Real Ray, fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from ray import serve

from serve_app.config import ModelConfig
from serve_app.deployments.build import system_app
from serve_app.deployments.model.deployment import model_deployment
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.rules import app_name
from serve_app.types import EngineStats
from tests.support.fake_server import FakeServer
from tests.support.ray_cluster import Cluster, engine_stats

# One event loop for all: a Serve handle belongs to the loop that first used it.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

WAIT_S = 60.0
MODEL = "over-http"


@pytest.fixture(scope="module")
def server(ray_cluster: Cluster) -> Iterator[Cluster]:
    config = ModelConfig(name=MODEL)
    model = model_deployment(config).options(health_check_period_s=1, graceful_shutdown_timeout_s=10)
    serve.run(model.bind(config, FakeServer.start), name=app_name(MODEL), route_prefix=None)
    serve.run(system_app([Endpoint(name=MODEL)]), name="system", route_prefix="/")
    yield ray_cluster
    serve.delete("system")
    serve.delete(app_name(MODEL))


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
        async with asyncio.timeout(WAIT_S):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        yield client


def chat(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt}], **fields}


async def events(response: httpx.Response) -> AsyncIterator[Any]:
    """The events of a stream, decoded; `[DONE]` as that text."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


async def stats() -> EngineStats:
    return await engine_stats(app_name(MODEL))


async def test_a_stream_arrives_whole(client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=chat("tokens=5")) as response:
        assert response.status_code == 200
        seen = [event async for event in events(response)]
    assert seen[-1] == "[DONE]"
    texts = [e["choices"][0]["delta"].get("content") or "" for e in seen[:-1]]
    assert "".join(texts) == "0 1 2 3 4 "


async def test_64_concurrent_streams_end_without_error(client: httpx.AsyncClient) -> None:
    async def one() -> Any:
        async with client.stream("POST", "/v1/chat/completions", json=chat("tokens=20")) as response:
            return [event async for event in events(response)][-1]

    assert await asyncio.gather(*(one() for _ in range(64))) == ["[DONE]"] * 64


async def test_a_client_that_leaves_frees_its_sequence(client: httpx.AsyncClient) -> None:
    before = (await stats()).preemptions
    async with client.stream("POST", "/v1/chat/completions", json=chat("tokens=9999 step=0.02")) as response:
        stream = events(response)  # kept: a generator that is collected closes its response
        await anext(stream)
        async with asyncio.timeout(WAIT_S):  # one of before may just be ending
            while (await stats()).running != 1:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(WAIT_S):
        while (after := await stats()).running or after.preemptions == before:
            await asyncio.sleep(0.01)
    assert after.preemptions == before + 1


async def test_the_answer_of_a_killed_replica_goes_on_in_its_replacement(client: httpx.AsyncClient) -> None:
    victim = (await stats()).steps
    body = chat("tokens=300 step=0.02")
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        stream = events(response)
        seen = [await anext(stream)]
        os.kill(victim, signal.SIGKILL)
        seen += [event async for event in stream]
    choices = [choice for event in seen if isinstance(event, dict) for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == "".join(f"{i} " for i in range(300))
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert (await stats()).steps != victim


async def test_a_forged_address_changes_nothing_on_loopback(client: httpx.AsyncClient) -> None:
    """What a client claims of its address is neither believed nor held against it."""
    forged = {"X-Forwarded-For": "203.0.113.9"}
    assert (await client.get("/v1/models", headers=forged)).status_code == 200
