"""A request that kills each replica it comes to is found among those that were beside it."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from serve_app.deployments.gateway import routed_stream
from serve_app.deployments.gateway.poison_requests import BARREN_DEATHS
from serve_app.errors import EngineRefused, Unavailable
from serve_app.types import GenerateRequest, Prompt, SamplingParams, TokenDelta
from tests.support.fake_replicas import FakeReplica, undisturbed
from tests.support.routed import Gateway, rest, until

INNOCENTS = 6
POISON = "poison"


def request(name: str) -> GenerateRequest:
    return GenerateRequest(id=name, model="m", prompt=Prompt(text=name), sampling=SamplingParams(seed=7))


async def read(gateway: Gateway, asked: GenerateRequest) -> list[TokenDelta]:
    """As the API does: while there is no replica, a request of which nothing was delivered is sent again."""
    while True:
        try:
            with closing(gateway.route.generate(asked)) as stream:
                return await rest(stream)
        except Unavailable:
            await until(lambda: gateway.handle.is_there)


async def supply(gateway: Gateway, deaths: list[FakeReplica], gap_s: float) -> None:
    """One that has the poison dies before it makes a step. The next is there at once, or `gap_s` later."""
    replica = gateway.add("0")
    for number in range(1, 100):
        while not any(id.startswith(POISON) for id in replica.running):
            replica.go()
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)  # whoever was sent beside the poison is there
        deaths.append(replica)
        if gap_s:
            gateway.kill(replica)
            await asyncio.sleep(gap_s)
            replica = gateway.add(f"{number}")
        else:
            new = gateway.add(f"{number}")
            gateway.kill(replica)
            replica = new


@pytest.mark.parametrize("is_late", [False, True], ids=["beside each other", "innocents first"])
@pytest.mark.parametrize("gap_s", [0.0, 0.3], ids=["a replica is there", "it comes later"])
async def test_who_died_beside_the_poison_is_answered(
    gateway: Gateway, is_late: bool, gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was delivered of anybody, so that each is as suspect as the others."""
    monkeypatch.setattr(routed_stream, "TRIAL_S", 0.2)  # shorter than a replica may be away
    gateway.returns = True
    deaths: list[FakeReplica] = []
    supplying = asyncio.ensure_future(supply(gateway, deaths, gap_s))
    await until(lambda: gateway.handle.is_there)
    innocents = [asyncio.ensure_future(read(gateway, request(f"{i}"))) for i in range(INNOCENTS)]
    if is_late:
        await asyncio.sleep(0.005)
    with pytest.raises(EngineRefused):
        await read(gateway, request(POISON))
    for number, deltas in enumerate(await asyncio.gather(*innocents)):
        assert deltas == undisturbed(request(f"{number}"))
    assert len(deaths) == BARREN_DEATHS
    supplying.cancel()
