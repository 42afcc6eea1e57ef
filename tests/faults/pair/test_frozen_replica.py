"""A replica's process is stopped (SIGSTOP) beside one that runs: it keeps its connections, and says nothing.

No request stays with it, in whatever state it was: not taken yet, in prefill, in decode, streamed or whole.
Real clients of every protocol over HTTP and gRPC, HAProxy, gateway, channel and engine, with the demo model.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest

from serve_app.channel.link import SILENCE_S
from tests.faults.accounts import all_finished
from tests.support.asks import ANSWER_S, COMPLETIONS, connected
from tests.support.mixed_streams import MixedStreams
from tests.support.replica_pair import START_S, Pair, is_alive

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

# An answer may meet the silence twice, as a client that asks again for its ids does; the rest is its own.
ANSWERED_S: Final = 4 * SILENCE_S
CHECKED_S: Final = 2 * ANSWER_S  # Serve's own patience, in rounds that are to end without its help
AFTER_S: Final = 2.0  # new requests come for so long


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


async def until_ready(pair: Pair, status: str, *words: str) -> None:
    """Wait until /readyz has that status, and reasons with these words."""
    async with asyncio.timeout(START_S):
        while True:
            told: dict[str, Any] = (await pair.client.get("/readyz")).json()
            if told["status"] == status and all(word in str(told.get("reasons")) for word in words):
                return
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("rounds", "seed"),
    [(1, 21), pytest.param(20, 22, marks=[pytest.mark.full, pytest.mark.timeout(1_800)])],
)
async def test_no_request_stays_with_a_replica_that_is_frozen(deployed: Pair, rounds: int, seed: int) -> None:
    """One of two, at a random moment of a mixed load. Serve does not replace it, and no answer is lost."""
    pair, draw, since = deployed, random.Random(seed), time.time()
    await pair.deploy(health_check_timeout_s=CHECKED_S)
    async with connected(pair.url, pair.grpc, pair.config.name) as client:
        load = MixedStreams(client)
        await load.learn()
        for _ in range(rounds):
            pids = await pair.until(2)
            await until_ready(pair, "ready")
            with ExitStack() as stack:
                async with load.running():
                    await asyncio.sleep(draw.uniform(0, AFTER_S))
                    stack.enter_context(frozen(draw.choice(sorted(pids))))
                    await asyncio.sleep(AFTER_S)
                await until_ready(pair, "degraded", "1 of 2 replicas does not answer")
            assert load.longest_s < ANSWERED_S, load.slowest
    await all_finished(pair, load, since)


async def test_a_model_whose_only_replica_is_frozen_is_not_ready_until_it_goes_on(deployed: Pair) -> None:
    """Meanwhile requests wait as for a replica that restarts."""
    await deployed.deploy(replicas=1, health_check_timeout_s=CHECKED_S)
    (only,) = await deployed.until(1)
    asked = {"model": deployed.config.name, "prompt": "Once", "max_tokens": 8}
    with frozen(only):
        waiting = asyncio.ensure_future(deployed.client.post(COMPLETIONS, json=asked, timeout=ANSWER_S))
        await until_ready(deployed, "not ready", "not answering")
        assert not waiting.done()
    assert (await waiting).status_code == 200
    await until_ready(deployed, "ready")


async def test_serve_replaces_a_replica_that_is_frozen(deployed: Pair) -> None:
    """With the time that it may take to shut down, which it cannot use."""
    await deployed.deploy(health_check_timeout_s=2)
    victim = max(await deployed.until(2))
    with frozen(victim):
        assert len(await deployed.until(2, without={victim})) == 2
    await until_ready(deployed, "ready")
