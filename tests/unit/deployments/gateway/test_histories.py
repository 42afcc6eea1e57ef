"""Whatever happens to replicas, clients are given the deltas of an undisturbed answer: random histories."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import closing, suppress

import pytest

from serve_app.deployments.gateway import poison_requests, routed_stream
from serve_app.errors import Overloaded
from serve_app.types import GenerateRequest, Prompt, SamplingParams, TokenDelta
from tests.support.fake_replicas import FakeReplica, undisturbed
from tests.support.routed import Gateway, get, until

HISTORIES = 20
MANY = 400
REQUESTS = 4
EVENTS = 8
WEIGHTS = ("w", "w", "w", "other")  # of a replica
STEP_S = 0.002  # the longest that a replica takes for a step

pytestmark = pytest.mark.usefixtures("endless")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of losses is too large here."""
    monkeypatch.setattr(routed_stream, "MOVES", 10**6)
    monkeypatch.setattr(routed_stream, "UNLUCKY_DEATHS", 10**6)
    monkeypatch.setattr(poison_requests, "DEATHS", 10**6)
    monkeypatch.setattr(poison_requests, "BARREN_DEATHS", 10**6)


def request(rng: random.Random, number: int) -> GenerateRequest:
    n = rng.choice((1, 1, 2, 4))
    return GenerateRequest(
        id=f"r{number}",
        model="m",
        prompt=Prompt(text="a"),
        sampling=SamplingParams(seed=rng.randrange(1_000)),
        n=n,
        best_of=rng.choice((None, None, None, n + 1)),
        stream=rng.random() < 0.8,
        timeout_s=100.0,
        parent_id="all",  # so that it waits also where nothing was delivered
    )


class History:
    """Two replicas at first; then things happen to them."""

    def __init__(self, gateway: Gateway, rng: random.Random) -> None:
        self._gateway = gateway
        self._rng = rng
        self._count = 0
        gateway.returns = True
        gateway.handle._choose = rng.choice
        for weights in WEIGHTS[:2]:
            self._new(weights)

    def end(self) -> None:
        """Nothing happens any more, and whatever was begun can be ended."""
        for weights in WEIGHTS:
            self._new(weights)

    def _new(self, weights: str) -> FakeReplica:
        self._count += 1
        replica = self._gateway.add(f"{self._count}", weights, runs=True)
        replica.pace = lambda: self._rng.random() * STEP_S
        return replica

    def _add(self) -> None:
        replica = self._new(self._rng.choice(WEIGHTS))
        if self._rng.random() < 0.2:
            replica.refuses = Overloaded("full")
            loop = asyncio.get_running_loop()
            loop.call_later(self._rng.random() * 4 * STEP_S, setattr, replica, "refuses", None)

    def happen(self) -> None:
        """One event."""
        self._rng.choice((self._add, self._kill, self._kill, self._cut, self._stop_engine, self._leave))()

    def _kill(self) -> None:
        self._gateway.kill(self._one())

    def _cut(self) -> None:
        self._one().cut()

    def _stop_engine(self) -> None:
        replica = self._one()
        replica.stop_engine()
        if self._rng.random() < 0.7:
            self._gateway.remove(replica)

    def _leave(self) -> None:
        """Serve's router hears of it sooner or later."""
        replica = self._one()
        replica.leave()
        if self._rng.random() < 0.5:
            self._gateway.remove(replica)

    def _one(self) -> FakeReplica:
        if not self._gateway.handle.replicas:
            self._add()
        return self._rng.choice(self._gateway.handle.replicas)


async def read(gateway: Gateway, asked: GenerateRequest, rng: random.Random) -> tuple[list[TokenDelta], int]:
    """All deltas of `asked`, read at the pace of a client, and how often it was moved."""
    await asyncio.sleep(rng.random() * 2 * STEP_S)
    deltas: list[TokenDelta] = []
    while True:
        with closing(gateway.route.generate(asked)) as stream, suppress(Overloaded):
            while more := await get(stream):
                deltas += more
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * STEP_S)
            return deltas, stream.migrations
        assert not deltas  # no replica had taken it


async def check(gateway: Gateway, seed: int) -> int:
    """One history. Returns how many answers were moved in it."""
    rng = random.Random(seed)
    history = History(gateway, rng)
    asked = [request(rng, number) for number in range(REQUESTS)]
    before = sum(gateway.migrations.counts.values())
    reads = [asyncio.ensure_future(read(gateway, each, random.Random(seed))) for each in asked]
    for _ in range(EVENTS):
        await asyncio.sleep(rng.random() * 2 * STEP_S)
        history.happen()
    history.end()
    moves = 0
    for each, (deltas, migrations) in zip(asked, await asyncio.gather(*reads), strict=True):
        assert [delta for delta in deltas if not delta.is_progress] == undisturbed(each), seed
        moves += migrations
    assert sum(gateway.migrations.counts.values()) - before == moves
    for replica in gateway.all:
        await until(lambda: not replica.running)  # noqa: B023
        await replica.close()
    gateway.all.clear()
    gateway.handle.replicas.clear()
    await until(gateway.is_idle)
    return moves


async def test_the_deltas_of_any_history_are_those_of_an_undisturbed_answer(gateway: Gateway) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    moves = [await check(gateway, seed) for seed in range(first, first + HISTORIES)]
    assert sum(moves) > HISTORIES


@pytest.mark.full
async def test_the_deltas_of_many_histories(gateway: Gateway) -> None:
    for seed in range(HISTORIES, MANY):
        await check(gateway, seed)
