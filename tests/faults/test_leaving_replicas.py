"""Replicas that are taken away, or replaced, with long answers under way: those go on elsewhere, at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.support.asks import connected
from tests.support.mixed_streams import MixedStreams, long_asks
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import MODEL, Pair, is_alive, model_config, replica_pair, wide_demo

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

ANSWERS: Final = 10
GONE_S: Final = 10.0  # within which a process must be gone that had long answers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair


async def until_one_is_gone(pids: set[int]) -> None:
    while sum(map(is_alive, pids)) == len(pids):
        await asyncio.sleep(0.05)


async def all_finished(pair: Pair, load: MixedStreams, since: float) -> int:
    """Every answer of the load has its one record, with its tokens. The sum of their moves."""
    await pair.until_idle()
    records = await pair.records(len(load.answers), since)
    assert {record.outcome for record in records} == {"finished"}
    made = sum(record.completion_tokens - record.discarded_tokens for record in records)
    assert made == sum(answer.tokens for _, answer in load.answers)
    return sum(record.migrations for record in records)


@pytest.mark.parametrize("length", [700, pytest.param(2000, marks=pytest.mark.full)])
async def test_a_replica_too_many_is_gone_at_once_and_its_answers_go_on(pair: Pair, length: int) -> None:
    since = time.time()
    await pair.deploy(replicas=2)
    pids = await pair.until(2)
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, long_asks(ANSWERS, length))
        await load.learn()
        async with load.running():
            await pair.until_running(ANSWERS)
            done = len(load.answers)
            await pair.deploy(replicas=1)
            async with asyncio.timeout(GONE_S):
                await until_one_is_gone(pids)
            logger.info("gone; %d answers of %d tokens ended meanwhile", len(load.answers) - done, length)
    assert await all_finished(pair, load, since) > 0


@pytest.mark.full
async def test_a_rolling_replacement_under_load_loses_nothing_three_times(pair: Pair) -> None:
    since = time.time()
    await pair.deploy(replicas=2)
    await pair.until(2)
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client)
        await load.learn()
        async with load.running():
            for turn in range(3):
                old = await pair.until(2)
                engine = pair.config.engine.model_copy(update={"max_waiting": 200 + turn})
                await pair.deploy(config=pair.config.model_copy(update={"engine": engine}))
                await pair.until(2, without=old)
    assert await all_finished(pair, load, since) > 0


@pytest.mark.full
async def test_a_model_that_replaces_another_takes_no_answer_over(pair: Pair, tmp_path: Path) -> None:
    """Each answer is wholly the old model's or wholly the new one's."""
    since = time.time()
    await pair.deploy(replicas=2)
    await pair.until(2)
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, long_asks(ANSWERS, 300))
        await load.learn()
        load.compares = False
        async with load.running():
            old = await pair.until(2)
            source = wide_demo(tmp_path / "model", "demo-chat-v2")
            await pair.deploy(config=pair.config.model_copy(update={"source": str(source)}))
            await pair.until(2, without=old)
            await asyncio.sleep(1)  # answers of the new one
        await load.learn()
    before, after = load.expected
    assert all(before[name].events != after[name].events for name in before)
    for ask, answer in load.answers:
        load.check(ask, answer)
    await all_finished(pair, load, since)
