"""kill -9 of a replica in the middle of its answers: they go on in the other one, and no client notices.

Real clients of every protocol, HAProxy, gateway, channel and engine, with the demo model.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.mixed_streams import MixedStreams, connected
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import MODEL, Pair, model_config, replica_pair, wide_demo

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair


async def killing(pair: Pair, kills: int, seed: int) -> None:
    """SIGKILL of one of two replicas, `kills` times, at random moments of a mixed load."""
    draw = random.Random(seed)
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client)
        await load.learn()
        moved = await pair.total("serve_app_migrations_total")
        async with load.running():
            pids = await pair.until(2)
            for number in range(kills):
                await asyncio.sleep(draw.uniform(0.2, 2.0))
                pids = await pair.kill(draw.choice(sorted(pids)))
                logger.info("kill %d: %d answers so far", number + 1, len(load.answers))
    await pair.until_idle()
    records = await pair.records(len(load.answers))
    assert {record.outcome for record in records} == {"finished"}
    assert Counter(r.completion_tokens - r.discarded_tokens for r in records) == load.tokens
    migrations = sum(record.migrations for record in records)
    assert migrations >= kills
    assert await pair.total("serve_app_migrations_total") - moved == migrations


async def test_no_client_notices_that_a_replica_was_killed(pair: Pair) -> None:
    await killing(pair, kills=2, seed=13)
