"""Replicas whose model is divided among two ranks, behind HAProxy and a gateway: ranks are taken away.

A replica ends as a whole, its answers move to the other one, Serve makes a new one, and nothing remains.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Set
from pathlib import Path
from typing import Final

import psutil
import pytest
import pytest_asyncio

from tests.faults.accounts import all_moved
from tests.support.asks import connected
from tests.support.mixed_streams import ASKS, MixedStreams
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import (
    MODEL,
    START_S,
    Pair,
    is_alive,
    model_config,
    replica_pair,
    until_gone,
    wide_demo,
)
from tests.support.several_ranks import divided_among

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

ROUNDS: Final = 5  # of each of four seeds
STREAMS: Final = 16  # of all protocols, streamed and whole, from 8 tokens to 600
LONGEST_S: Final = 2.0  # between two replicas that are whole and the next loss
LOST_S: Final = 10.0  # for a rank to be missed, and all processes of its replica to end
DELETED_S: Final = 60.0  # for replicas without requests to leave


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def divided(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("divided")
    with divided_among(2):
        config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair
        last = processes_of(await with_ranks(pair))
    await until_gone(last, DELETED_S)


def ranks_of(replica: int) -> list[psutil.Process]:
    """The other ranks of a replica's process."""
    children = psutil.Process(replica).children()
    return [each for each in children if "serve_app.replica.ranks.follower" in each.cmdline()]


def processes_of(replicas: Set[int]) -> set[int]:
    """Those of all ranks."""
    return {*replicas, *(rank.pid for each in replicas for rank in ranks_of(each))}


async def with_ranks(pair: Pair) -> set[int]:
    """The processes of both replicas, once each has its other rank."""
    async with asyncio.timeout(START_S):
        while not all(map(ranks_of, found := await pair.until(2))):
            await asyncio.sleep(0.1)
    return found


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_no_client_notices_that_ranks_are_lost(divided: Pair, how: signal.Signals, seed: int) -> None:
    draw, since = random.Random(f"{how} {seed}"), time.time()
    processes: set[int] = set()
    async with connected(divided.url, divided.grpc, MODEL) as client:
        load = MixedStreams(client, draw.sample(ASKS, STREAMS))
        await load.learn()
        counted = await divided.total("serve_app_migrations_total")
        async with load.running():
            for number in range(ROUNDS):
                replicas = await with_ranks(divided)
                processes |= processes_of(replicas)
                await asyncio.sleep(draw.uniform(0, LONGEST_S))
                replica = draw.choice(sorted(replicas))
                (rank,) = ranks_of(replica)
                rank.send_signal(how)
                divided.killed.add(replica)
                took_s = await until_gone({replica, rank.pid}, LOST_S)
                logger.info("loss %d: gone after %.1f s, %d answers", number + 1, took_s, len(load.answers))
            last = processes_of(await with_ranks(divided))
    moves = await all_moved(divided, load, since)
    assert moves >= ROUNDS
    assert await divided.total("serve_app_migrations_total") - counted == moves
    assert not any(map(is_alive, processes - last))
