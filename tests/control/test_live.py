"""What happens now, on Ray with two gateways: both tell the same, and it is what the client did."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import pytest

from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EntityWanted,
    ListEndpoints,
    UpdateState,
)
from tests.control.server import MODEL, Controlled, controlled
from tests.control.test_keys import two_gateways
from tests.support.gateway import CHAT, chat_body, events
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

PATH: Final = "/api/2.0/live"
OWN: Final = "watched"  # an endpoint that no other test asks
REQUESTS: Final = 8
WINDOW_S: Final = 300.0
WAIT_S: Final = 60.0


async def asks(made: Controlled, name: str = MODEL) -> int:
    """Half of the requests stream. The tokens that were generated."""
    tokens = 0
    for place in range(REQUESTS):
        is_stream = place % 2 == 0
        options = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        answer = await made.server.client.post(CHAT, json=chat_body(model=name, max_tokens=8, **options))
        assert answer.status_code == 200, answer.text
        last = events(answer.text)[-1] if is_stream else answer.json()
        tokens += last["usage"]["completion_tokens"]
    return tokens


async def look(made: Controlled, name: str = MODEL, url: str = "") -> dict[str, Any]:
    """Five minutes of the endpoint, as the gateway at `url` tells them.

    After another gateway or the control plane died, they are its own alone for a moment.
    """
    answer = await made.server.client.get(f"{url}{PATH}", params={"endpoint": name, "window": WINDOW_S})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def until_told(made: Controlled, requests: int, name: str = MODEL, url: str = "") -> dict[str, Any]:
    """The figures of all gateways once `requests` have ended in them. More never come."""
    deadline = time.monotonic() + WAIT_S
    while (found := sums(body := await look(made, name, url)))["requests"] < requests or (
        body["gateways"] != "all"
    ):
        assert time.monotonic() < deadline, (found, body["gateways"])
        await asyncio.sleep(0.2)
    assert found["requests"] == requests
    return body


def sums(body: dict[str, Any]) -> dict[str, int]:
    window = body["endpoints"][0]["window"]
    return {
        "requests": round(window["requests_per_s"] * WINDOW_S),
        "tokens": round(window["tokens_per_s"] * WINDOW_S),
        "errors": round(window["errors_per_s"] * WINDOW_S),
    }


@pytest.mark.full  # tests/unit/api/live has the figures, tests/console the page
async def test_what_clients_do_shows_within_seconds(controlled_server: Controlled) -> None:
    wanted = ConfigWanted(entities=(EntityWanted(entity_name=MODEL),), traffic={})
    await controlled_server.do(CreateEndpoint(name=OWN, config=wanted, is_provisioned=False))
    assert (await controlled_server.until_settled(OWN)).update is UpdateState.NOT_UPDATING
    tokens = await asks(controlled_server, OWN)
    body = await until_told(controlled_server, REQUESTS, OWN)
    await controlled_server.do(DeleteEndpoint(name=OWN))
    assert sums(body) == {"requests": REQUESTS, "tokens": tokens, "errors": 0}
    window = body["endpoints"][0]["window"]
    assert 0 < window["first_token_s"]["p50"] <= window["first_token_s"]["p99"]
    assert 0 < window["inter_token_s"]["p50"] <= window["inter_token_s"]["p99"]
    (app,) = body["applications"]
    assert (app["application"], app["replicas"]) == (f"model-{MODEL}", 1)


@pytest.mark.full
async def test_two_gateways_tell_the_same_also_after_the_control_plane_died(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    async with controlled(ray_cluster, two_gateways(), tmp_path) as made:
        urls = (await made.server.gateways()).values()
        assert len(urls) == 2
        tokens = await asks(made)
        for url in urls:
            assert sums(await until_told(made, REQUESTS, url=url)) == {
                "requests": REQUESTS,
                "tokens": tokens,
                "errors": 0,
            }
        (plane,) = made.processes()
        plane.kill()
        async with asyncio.timeout(WAIT_S):
            while plane.is_running() or not made.processes():
                await asyncio.sleep(0.1)
        await made.do(ListEndpoints())  # it is back, and hears of what was before from gateways that are idle
        for url in urls:
            async with asyncio.timeout(WAIT_S):
                while (found := await look(made, url=url))["gateways"] != "all" or (
                    sums(found)["requests"] < REQUESTS
                ):
                    await asyncio.sleep(0.2)
            assert sums(found)["tokens"] == tokens
        tokens += await asks(made)  # whoever answers tells all that it has
        for url in urls:
            async with asyncio.timeout(WAIT_S):
                while sums(found := await look(made, url=url))["requests"] < 2 * REQUESTS:
                    await asyncio.sleep(0.2)
            assert sums(found)["tokens"] == tokens
