"""Replicas whose model is divided among two ranks, behind HAProxy and a gateway: one rank is taken away.

The replica ends as a whole, its answers go on in the other one, and Serve makes a new one.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psutil
import pytest
import pytest_asyncio

from serve_app.config import EngineConfig, ModelConfig
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import MODEL, Pair, replica_pair
from tests.support.tiny_llama import make_tiny_llama

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

STREAMS: Final = 8  # more than one replica would get
TOKENS: Final = 500
LOST_S: Final = 20.0  # for a rank to be missed, and an engine to end


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def divided(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("divided")
    config = ModelConfig(
        name=MODEL,
        source=str(make_tiny_llama(folder / "model")),
        dtype="float32",
        device="cpu",
        threads=1,
        tensor_parallel=2,
        engine=EngineConfig(max_sequences=16, block_size=16, num_blocks=1024, ngram_draft=0),
    )
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair


def ranks_of(replica: int) -> list[psutil.Process]:
    """The other ranks of a replica's process."""
    children = psutil.Process(replica).children()
    return [each for each in children if "serve_app.replica.ranks.follower" in each.cmdline()]


async def with_ranks(pair: Pair) -> set[int]:
    """The processes of both replicas, once each has its other rank."""
    async with asyncio.timeout(LOST_S):
        while not all(map(ranks_of, found := await pair.until(2))):
            await asyncio.sleep(0.1)
    return found


async def stream(pair: Pair, number: int, begun: asyncio.Event) -> str:
    """The text of one answer, token by token."""
    asked = {"prompt": f"{number} quick brown foxes", "max_tokens": TOKENS, "temperature": 0}
    asked |= {"model": pair.config.name, "stream": True, "ignore_eos": True}
    text = ""
    async with pair.client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                if len(text) > 40:
                    begun.set()
    return text


async def streams(pair: Pair, how: signal.Signals | None = None) -> list[str]:
    """All answers; once all have begun, a rank of one replica gets the signal `how`."""
    begun = [asyncio.Event() for _ in range(STREAMS)]
    answers = [asyncio.ensure_future(stream(pair, number, each)) for number, each in enumerate(begun)]
    if how is not None:
        await asyncio.gather(*(each.wait() for each in begun))
        replica = min(await pair.pids())
        (rank,) = ranks_of(replica)
        rank.send_signal(how)
        assert not all(each.done() for each in answers)
        await asyncio.to_thread(rank.wait, LOST_S)
        pair.killed.add(replica)
    return await asyncio.gather(*answers)


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_answers_survive_the_loss_of_a_rank(divided: Pair, how: signal.Signals) -> None:
    before = await with_ranks(divided)
    wanted = await streams(divided)
    assert await streams(divided, how) == wanted
    assert len(await with_ranks(divided) & before) == 1
    await divided.until_idle()
