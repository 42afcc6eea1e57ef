"""kill -9 of a replica in the middle of its answers: they go on in the other one, and no client notices.

Real clients of every protocol, HAProxy, gateway, channel and engine, with the demo model.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.asks import connected
from tests.support.mixed_streams import MixedStreams
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import MODEL, Pair, model_config, replica_pair, wide_demo

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

LONGEST_S = 2.0  # between two replicas that are up and the next kill


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(2, 13), pytest.param(50, 14, marks=[pytest.mark.full, pytest.mark.timeout(2_400)])],
)
async def test_no_client_notices_that_replicas_are_killed(pair: Pair, kills: int, seed: int) -> None:
    """One of two, at random moments of a mixed load."""
    draw, since = random.Random(seed), time.time()
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client)
        await load.learn()
        moved = await pair.total("serve_app_migrations_total")
        async with load.running():
            for number in range(kills):
                pids = await pair.until(2)
                await asyncio.sleep(draw.uniform(0, LONGEST_S))
                pair.kill(draw.choice(sorted(pids)))
                logger.info("kill %d of %d: %d answers so far", number + 1, kills, len(load.answers))
    await pair.until_idle()
    records = await pair.records(len(load.answers), since)
    assert {record.outcome for record in records} == {"finished"}
    assert Counter(r.completion_tokens - r.discarded_tokens for r in records) == load.tokens
    migrations = sum(record.migrations for record in records)
    assert migrations >= kills
    assert await pair.total("serve_app_migrations_total") - moved == migrations
