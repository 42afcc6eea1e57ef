"""A request that kills each replica it comes to: it is given up soon, and who ran beside it loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support.asks import COMPLETIONS, connected
from tests.support.mixed_streams import MixedStreams, long_asks
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import MODEL, POISON, Pair, model_config, replica_pair, wide_demo

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

INNOCENTS: Final = 8
DEATHS: Final = 4  # that one request may cause


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair


@asynccontextmanager
async def seen(pair: Pair) -> AsyncIterator[set[int]]:
    """Every process of a replica that ran during the block."""
    pids: set[int] = set()

    async def look() -> None:
        while True:
            pids.update(await pair.pids())
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    try:
        yield pids
    finally:
        looking.cancel()


@pytest.mark.parametrize("at", [0, pytest.param(20, marks=pytest.mark.full)])
async def test_a_request_that_kills_replicas_is_given_up_and_its_neighbours_live(pair: Pair, at: int) -> None:
    """At its first step, or once it has `at` tokens."""
    since = time.time()
    poison: dict[str, Any] = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 100,
        "stream": True,
        "ignore_eos": True,
        "logits_processors": [{"qualname": POISON, "kwargs": {"at": at}}],
    }
    await pair.until(2)
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, long_asks(INNOCENTS, 400))
        await load.learn()
        async with seen(pair) as pids, load.running():
            await pair.until_running(INNOCENTS)
            response = await client.http.post(COMPLETIONS, json=poison)
            assert response.text.count('"error":{') == 1, response.text
            assert response.text.count('"text"') <= at
            living = await pair.until(2)
            again = await client.http.post(COMPLETIONS, json=poison)
            assert again.status_code == 500, again.text
            assert await pair.until(2) == living
    assert 1 < len(pids - living) <= DEATHS
    await pair.until_idle()
    records = await pair.records(len(load.answers) + 2, since)
    assert [record.outcome for record in records].count("failed") == 2
    assert len(load.answers) > INNOCENTS
