"""One budget, two gateways in processes of their own, and a limiter that dies. Real Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from serve_app.deployments import limiter as module
from serve_app.deployments.limiter import WAIT_S, Limiter, SharedQuota, limiter_deployment
from serve_app.errors import Unavailable
from serve_app.types import Draw, Verdict
from tests.support.ray_cluster import Cluster

# One event loop for all: a Serve handle belongs to the loop that first used it.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

APP = "test-limiter"
TEST_WAIT_S = 60.0
PATIENT_S = 45.0  # for a verdict, where the machine may stall and the limiter lives
TEN = Draw(bucket="", unit="requests", amount=1, capacity=10, per_second=1e-6)

_draw_decoder = msgspec.msgpack.Decoder(Draw)


class Watched(Limiter):
    """Tells whom to kill and how often it was called, and holds calls back when asked to."""

    calls = 0
    allowed = sys.maxsize  # later calls wait

    async def take(self, payload: bytes) -> bytes:
        self.calls += 1
        mine = self.calls
        while mine > self.allowed:
            await asyncio.sleep(0.005)
        return await super().take(payload)

    async def about(self) -> tuple[int, int]:
        return os.getpid(), self.calls

    async def allow(self, calls: int) -> None:
        self.allowed = calls


class Claimant:
    """What a gateway does with budgets, in a replica as a gateway is."""

    async def __init__(self, handle: DeploymentHandle) -> None:  # type: ignore[misc]  # Serve awaits it
        self._limiter = handle
        self._quota = SharedQuota(handle)
        await self.wait(PATIENT_S)

    async def claim(self, payload: bytes, times: int) -> bytes:
        """`times` claims at once: the verdicts, None where it was Unavailable."""
        draw = _draw_decoder.decode(payload)

        async def one() -> Verdict | None:
            try:
                return await self._quota.claim([draw])
            except Unavailable:
                return None

        return msgspec.msgpack.encode(await asyncio.gather(*(one() for _ in range(times))))

    async def leave(self, payload: bytes) -> None:
        """A claim whose client leaves while it is under way."""
        claim = asyncio.create_task(self._quota.claim([_draw_decoder.decode(payload)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        claim.cancel()

    async def settle(self, payload: bytes) -> None:
        self._quota.settle([_draw_decoder.decode(payload)])

    async def limiter(self) -> tuple[int, int]:
        pid, calls = await self._limiter.about.remote()
        return pid, calls

    async def wait(self, seconds: float) -> None:
        """How long each claim of this process waits for its verdict from now on."""
        module.WAIT_S = seconds  # type: ignore[misc]

    async def allow(self, calls: int) -> None:
        """Let the limiter answer so many calls."""
        await self._limiter.allow.remote(calls)

    async def gathered(self) -> int:
        return len(self._quota._claims)


class Pair:
    """Stands for an ingress: both claimants hang on one limiter, as in one application."""

    def __init__(self, one: DeploymentHandle, two: DeploymentHandle) -> None:
        self._gateways = (one, two)

    async def ask(self, gateway: int, method: str, *args: object) -> object:
        return await getattr(self._gateways[gateway], method).remote(*args)


@pytest.fixture(scope="module")
def pair(ray_cluster: Cluster) -> Iterator[DeploymentHandle]:
    deployment = limiter_deployment().options(func_or_class=Watched, health_check_period_s=1)
    limiter = deployment.bind()
    gateways = [
        serve.deployment(Claimant)
        .options(name=f"Gateway{n}", max_ongoing_requests=1_000, ray_actor_options={"num_cpus": 0.1})
        .bind(limiter)
        for n in range(2)
    ]
    app = serve.deployment(Pair).options(max_ongoing_requests=1_000).bind(*gateways)
    yield serve.run(app, name=APP, route_prefix=None)
    serve.delete(APP)


def encoded(draw: Draw) -> bytes:
    return msgspec.msgpack.encode(draw)


async def claim(pair: DeploymentHandle, gateway: int, draw: Draw, times: int = 1) -> list[Verdict | None]:
    async with asyncio.timeout(TEST_WAIT_S):
        verdicts = await pair.ask.remote(gateway, "claim", encoded(draw), times)
    return msgspec.msgpack.decode(verdicts, type=list[Verdict | None])


async def answer(response: DeploymentResponse) -> object:
    return await response


async def about(pair: DeploymentHandle) -> tuple[int, int]:
    async with asyncio.timeout(TEST_WAIT_S):
        pid, calls = await pair.ask.remote(0, "limiter")
    return pid, calls


async def left(pair: DeploymentHandle, draw: Draw) -> int | None:
    (verdict,) = await claim(pair, 0, replace(draw, amount=0))
    return verdict.budgets[0].remaining if verdict else None


async def test_two_gateways_grant_a_budget_exactly_once_in_few_calls(pair: DeploymentHandle) -> None:
    draw = replace(TEN, bucket="burst")
    await left(pair, draw)  # both ends are up
    _, before = await about(pair)
    both = await asyncio.gather(*(claim(pair, gateway, draw, 200) for gateway in range(2)))
    _, after = await about(pair)
    counts = Counter(verdict.granted if verdict else None for verdicts in both for verdict in verdicts)
    assert counts == {True: 10, False: 390}
    assert after - before <= 20


async def test_separate_claims_from_two_gateways_are_exact_too(pair: DeploymentHandle) -> None:
    draw = replace(TEN, bucket="separate")
    verdicts = await asyncio.gather(*(claim(pair, number % 2, draw) for number in range(200)))
    assert sum(verdict.granted for (verdict,) in verdicts if verdict) == 10
    assert all(verdict for (verdict,) in verdicts)


async def test_what_one_gateway_gives_back_another_may_take(pair: DeploymentHandle) -> None:
    draw = replace(TEN, bucket="given-back")
    await claim(pair, 0, draw, 10)
    (refused,) = await claim(pair, 1, draw)
    assert refused
    assert (refused.granted, refused.refused) == (False, "requests")
    await pair.ask.remote(0, "settle", encoded(replace(draw, amount=-1)))
    async with asyncio.timeout(TEST_WAIT_S):
        while not await left(pair, draw):
            await asyncio.sleep(0.02)
    (granted,) = await claim(pair, 1, draw)
    assert granted
    assert granted.granted


async def test_claims_of_clients_that_left_take_nothing(pair: DeploymentHandle) -> None:
    draw = replace(TEN, bucket="left")
    await asyncio.gather(*(pair.ask.remote(number % 2, "leave", encoded(draw)) for number in range(8)))
    async with asyncio.timeout(TEST_WAIT_S):
        while await left(pair, draw) != 10:
            await asyncio.sleep(0.02)


async def test_a_request_that_serve_cancels_gives_back_its_grants_and_leaves_its_neighbours_theirs(
    pair: DeploymentHandle,
) -> None:
    """Both wait for one call to the limiter, which is under way when one of them is cancelled."""
    draw = replace(TEN, bucket="neighbours")

    _, before = await about(pair)
    await pair.ask.remote(0, "allow", before)
    first = asyncio.create_task(claim(pair, 0, draw))
    async with asyncio.timeout(TEST_WAIT_S):
        while (await about(pair))[1] == before:
            await asyncio.sleep(0.01)
        staying = asyncio.create_task(claim(pair, 0, draw, 3))  # these
        response = pair.ask.remote(0, "claim", encoded(draw), 2)  # and these go with the next call
        leaving = asyncio.create_task(answer(response))  # only what is awaited can be cancelled
        while await pair.ask.remote(0, "gathered") < 5:
            await asyncio.sleep(0.01)
        await pair.ask.remote(0, "allow", before + 1)
        while (await about(pair))[1] == before + 1:
            await asyncio.sleep(0.01)
    response.cancel()
    with pytest.raises((RequestCancelledError, RayError)):
        await leaving
    await asyncio.sleep(0.3)  # for a cancellation to do what harm it can
    await pair.ask.remote(0, "allow", sys.maxsize)
    assert all(verdict and verdict.granted for verdict in [*await first, *await staying])
    async with asyncio.timeout(TEST_WAIT_S):
        while await left(pair, draw) != 6:  # what was granted to those that left came back
            await asyncio.sleep(0.02)


async def test_while_the_limiter_is_dead_claims_end_in_time_and_after_it_they_are_served(
    pair: DeploymentHandle,
) -> None:
    draw = replace(TEN, bucket="killed")
    await claim(pair, 0, draw, 10)
    await asyncio.gather(*(pair.ask.remote(gateway, "wait", WAIT_S) for gateway in range(2)))
    victim, _ = await about(pair)
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(TEST_WAIT_S):
        while True:
            async with asyncio.timeout(10 * WAIT_S):  # each ends in time, one way or the other
                answers = await asyncio.gather(*(claim(pair, gateway, draw) for gateway in range(2)))
            if any(verdict and verdict.granted for (verdict,) in answers):
                break
    assert (await about(pair))[0] != victim
    await asyncio.gather(*(pair.ask.remote(gateway, "wait", PATIENT_S) for gateway in range(2)))
    verdicts = [*await claim(pair, 0, draw, 20), *await claim(pair, 1, draw, 20)]
    granted = sum(verdict.granted for verdict in verdicts if verdict)
    assert 8 <= granted <= 9  # of the ten of a new limiter, less one or two that were granted above
    assert not await left(pair, draw)
