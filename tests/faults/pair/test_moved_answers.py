"""Replicas are killed, taken away, replaced, and ended by a request, with answers on them.

The answers go on in another replica, and no client notices. Real clients of every protocol, HAProxy, gateway,
channel and engine, with the demo model.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.faults.accounts import all_finished
from tests.support.asks import COMPLETIONS, connected, events
from tests.support.mixed_streams import MixedStreams, long_asks
from tests.support.replica_pair import (
    MODEL,
    POISON,
    START_S,
    Pair,
    is_alive,
    wide_demo,
)

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

LONGEST_S: Final = 2.0  # between two replicas that are up and the next kill
ANSWERS: Final = 10  # long ones
DEATHS: Final = 4  # that one request may cause
PROMPTS: Final = 16
PROMPT: Final = 4000  # tokens of each: seconds of work for both replicas


@pytest_asyncio.fixture(loop_scope="session")
async def pair(deployed: Pair) -> Pair:
    """Two replicas that run, whatever the test before did to them."""
    await deployed.deploy(replicas=2)
    await deployed.until(2)
    return deployed


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(1, 13), pytest.param(50, 14, marks=[pytest.mark.full, pytest.mark.timeout(2_400)])],
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
    records = await all_finished(pair, load, since)
    migrations = sum(record.migrations for record in records)
    assert migrations >= kills
    assert await pair.total("serve_app_migrations_total") - moved == migrations


@pytest.mark.full
async def test_prompts_of_thousands_of_tokens_are_computed_again_elsewhere(pair: Pair) -> None:
    """One of two replicas is killed while it computes them: nothing of their answers is delivered yet."""
    draw, since = random.Random(5), time.time()
    asked: list[dict[str, Any]] = [
        {
            "model": MODEL,
            "prompt": [draw.randrange(300) for _ in range(PROMPT)],
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "stream": bool(number % 2),
        }
        for number in range(PROMPTS)
    ]
    async with connected(pair.url, pair.grpc, MODEL) as client:

        async def answer(body: dict[str, Any]) -> str:
            found = await events(client, COMPLETIONS, body, done=True)
            return "".join(choice["text"] for event in found for choice in event["choices"])

        first = [asyncio.create_task(answer(body)) for body in asked]
        await pair.until_running(2)
        assert not all(task.done() for task in first)
        pair.kill(min(await pair.pids()))
        answers = await asyncio.gather(*first)
        assert answers == await asyncio.gather(*map(answer, asked))
    await pair.until_idle()
    records = await pair.records(2 * PROMPTS, since)
    assert {record.outcome for record in records} == {"finished"}
    assert {record.prompt_tokens for record in records} == {PROMPT}
    assert any(record.migrations for record in records)


async def until_one_is_gone(pids: set[int]) -> None:
    while sum(map(is_alive, pids)) == len(pids):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("length", [1000, pytest.param(2000, marks=pytest.mark.full)])
async def test_a_replica_too_many_is_gone_at_once_and_its_answers_go_on(pair: Pair, length: int) -> None:
    since = time.time()
    pids = await pair.pids()
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, long_asks(ANSWERS, length))
        await load.learn()
        async with load.running():
            await pair.until_running(ANSWERS)
            done = len(load.answers)
            await pair.deploy(replicas=1)
            async with asyncio.timeout(START_S):
                await until_one_is_gone(pids)
            logger.info("gone; %d answers of %d tokens ended meanwhile", len(load.answers) - done, length)
    # It did not wait for them: some have moved.
    assert any(record.migrations for record in await all_finished(pair, load, since))


@pytest.mark.full
async def test_a_rolling_replacement_under_load_loses_nothing_three_times(pair: Pair) -> None:
    since = time.time()
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client)
        await load.learn()
        async with load.running():
            for turn in range(3):
                old = await pair.until(2)
                engine = pair.config.engine.model_copy(update={"max_waiting": 200 + turn})
                await pair.deploy(config=pair.config.model_copy(update={"engine": engine}))
                await pair.until(2, without=old)
    assert any(record.migrations for record in await all_finished(pair, load, since))


@pytest.mark.full
async def test_a_model_that_replaces_another_takes_no_answer_over(pair: Pair, tmp_path: Path) -> None:
    """Each answer is wholly the old model's or wholly the new one's."""
    since = time.time()
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


@pytest.mark.full  # tests/unit/deployments/gateway/test_suspects.py has the rule
@pytest.mark.parametrize("at", [0, 20])
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
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, long_asks(ANSWERS, 400))
        await load.learn()
        async with seen(pair) as pids, load.running():
            await pair.until_running(ANSWERS)
            asked = 1
            while (response := await client.http.post(COMPLETIONS, json=poison)).status_code == 503:
                assert response.headers["retry-after"]  # two deaths may be bad luck
                asked += 1
            assert response.text.count('"error":{') == 1, response.text
            assert response.text.count('"text"') <= at
            living = await pair.until(2)
            again = await client.http.post(COMPLETIONS, json=poison)
            assert again.status_code == 500, again.text
            assert await pair.until(2) == living
    assert 1 < len(pids - living) <= DEATHS
    await pair.until_idle()
    records = await pair.records(len(load.answers) + asked + 1, since)
    assert [record.outcome for record in records].count("failed") == asked + 1
    assert len(load.answers) > ANSWERS
