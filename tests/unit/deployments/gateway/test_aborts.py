"""Clients that leave, thousands of them and at any moment: nothing of their requests is left."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

import pytest

from serve_app.types import GenerateRequest, Prompt, SamplingParams
from tests.support.fake_replicas import undisturbed
from tests.support.routed import Gateway, get, rest, until

AT_ONCE = 50
STEP_S = 0.002  # the longest that a replica takes for a step


def request(number: int) -> GenerateRequest:
    sampling = SamplingParams(seed=number)
    return GenerateRequest(id=f"r{number}", model="m", prompt=Prompt(text="a"), sampling=sampling)


async def leave(gateway: Gateway, number: int, draw: random.Random) -> None:
    """One request, whose client leaves at once, before a replica has it, within its answer, or at its end."""
    with closing(gateway.route.generate(request(number))) as stream:
        for _ in range(draw.randrange(12)):
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() * STEP_S)
            elif not await get(stream):
                return


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.full)])
async def test_who_leaves_leaves_nothing(gateway: Gateway, count: int) -> None:
    draw = random.Random(count)
    replicas = [gateway.add(name, runs=True) for name in "ab"]
    for replica in replicas:
        replica.pace = lambda: draw.random() * STEP_S
    gateway.handle._choose = draw.choice
    with closing(gateway.route.generate(request(-1))) as stream:  # connects
        await rest(stream)
    await until(gateway.is_idle)
    tasks = len(asyncio.all_tasks())
    for first in range(0, count, AT_ONCE):
        with closing(gateway.route.generate(request(count + first))) as neighbour:
            leaving = [leave(gateway, number, draw) for number in range(first, first + AT_ONCE)]
            deltas, *_ = await asyncio.gather(rest(neighbour), *leaving)
        assert deltas == undisturbed(request(count + first))
    await until(lambda: gateway.is_idle() and not any(replica.running for replica in replicas))
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    for replica in replicas:
        ledger = replica.ledger(gateway.receiver.ticket)
        assert not ledger._by_request
