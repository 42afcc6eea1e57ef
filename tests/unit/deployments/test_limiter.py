"""Shared budgets over a wire that loses, delays and repeats: the real limiter and quota, without Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import cast

import msgspec
import pytest
import pytest_asyncio
from ray.serve.handle import DeploymentHandle

from serve_app.accounts.open_claims import LEASE_S
from serve_app.deployments import limiter as module
from serve_app.deployments.limiter import Call, Limiter, SharedQuota, limiter_deployment
from serve_app.errors import Unavailable
from serve_app.types import Draw, Verdict

ONE = Draw(bucket="alice", unit="requests", amount=1, capacity=10, per_second=1e-6)


class Wire:
    """Stands where a Serve handle does. What becomes of a call is up to `rule`, from its first on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limiter = Limiter(lambda: self.now)
        self.calls: list[Call] = []
        self.open = 0
        self.most_open = 0
        self.rule: Callable[[bytes], object] | None = None  # an awaitable answer; None: the limiter's

    @property
    def take(self) -> Wire:
        return self

    async def remote(self, payload: bytes) -> bytes:
        self.calls.append(msgspec.msgpack.decode(payload, type=Call))
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            await asyncio.sleep(0.001)
            if self.rule is not None:
                return await self.rule(payload)  # type: ignore[misc, no-any-return]
            return await self.limiter.take(payload)
        finally:
            self.open -= 1

    async def lose_the_answer(self, payload: bytes) -> bytes:
        await self.limiter.take(payload)
        raise ConnectionError

    async def lose_the_call(self, payload: bytes) -> bytes:
        raise ConnectionError

    async def left(self, like: Draw = ONE) -> int:
        """What is left of a budget, asked by nobody's gateway."""
        call = Call("nobody", 1, 0, [], [(replace(like, amount=0),)])
        self.limiter._done.pop("nobody", None)
        answer = await self.limiter.take(msgspec.msgpack.encode(call))
        return msgspec.msgpack.decode(answer, type=list[Verdict])[0].budgets[0].remaining

    def quota(self) -> SharedQuota:
        return SharedQuota(cast(DeploymentHandle, self))


@pytest.fixture
def wire() -> Iterator[Wire]:
    logger = logging.getLogger("serve_app")  # the limiter takes it over, as its own process's
    before = (logger.handlers[:], logger.level, logger.propagate)
    wire = Wire()
    logger.handlers[:], logger.propagate = before[0], True
    yield wire
    logger.handlers[:], logger.level, logger.propagate = before


@pytest_asyncio.fixture
async def quota(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharedQuota]:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    quota = wire.quota()
    yield quota
    wire.rule = None
    await quota.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_burst_of_claims_is_a_handful_of_calls_and_exact(wire: Wire, quota: SharedQuota) -> None:
    other = wire.quota()
    verdicts = await asyncio.gather(*(q.claim([ONE]) for q in (quota, other) for _ in range(100)))
    assert sum(v.granted for v in verdicts) == 10
    assert {v.refused for v in verdicts if not v.granted} == {"requests"}
    assert sorted(v.budgets[0].remaining for v in verdicts if v.granted) == list(range(10))
    assert len(wire.calls) <= 4
    await other.close()


async def test_one_call_at_a_time_and_what_comes_meanwhile_goes_with_the_next(
    wire: Wire, quota: SharedQuota
) -> None:
    gate = asyncio.Event()

    async def wait(payload: bytes) -> bytes:
        await gate.wait()
        return await wire.limiter.take(payload)

    wire.rule = wait
    first = asyncio.create_task(quota.claim([ONE]))
    await until(lambda: wire.open)
    rest = [asyncio.create_task(quota.claim([ONE])) for _ in range(5)]
    await asyncio.sleep(0)
    quota.settle([replace(ONE, amount=2)])
    quota.settle([replace(ONE, amount=-1)])
    gate.set()
    assert (await first).budgets[0].remaining == 9
    assert [v.budgets[0].remaining for v in await asyncio.gather(*rest)] == [7, 6, 5, 4, 3]
    assert [(len(call.settlements), len(call.claims)) for call in wire.calls] == [(0, 1), (1, 5)]
    assert wire.most_open == 1


async def test_a_settlement_gives_back(wire: Wire, quota: SharedQuota) -> None:
    assert (await quota.claim([replace(ONE, amount=10)])).granted
    assert not (await quota.claim([ONE])).granted
    quota.settle([replace(ONE, amount=-1)])
    assert (await quota.claim([ONE])).granted


@pytest.mark.parametrize("under_way", [False, True])
async def test_the_grant_of_a_claim_whose_caller_left_is_given_back(
    wire: Wire, quota: SharedQuota, under_way: bool
) -> None:
    claim = asyncio.create_task(quota.claim([ONE]))
    if under_way:
        await until(lambda: wire.open)
    else:
        await asyncio.sleep(0)  # gathered, not sent
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await quota.close()
    assert await wire.left() == 10
    assert bool(wire.calls) == under_way


async def test_a_caller_that_leaves_in_the_moment_of_the_grant_gives_it_back(
    wire: Wire, quota: SharedQuota
) -> None:
    claim = asyncio.create_task(quota.claim([ONE]))
    await until(lambda: wire.open)
    (waiting,) = [task for task in asyncio.all_tasks() if task is claim]
    deliver = quota._deliver

    def deliver_and_leave(*args: object) -> None:
        deliver(*args)  # type: ignore[arg-type]
        waiting.cancel()  # the verdict is there, and the caller has not run yet

    quota._deliver = deliver_and_leave  # type: ignore[method-assign, assignment]
    with pytest.raises(asyncio.CancelledError):
        await claim
    await until(lambda: len(wire.calls) == 2 and not wire.open)
    assert await wire.left() == 10


@pytest.mark.parametrize("fate", ["lose_the_call", "lose_the_answer"])
async def test_a_claim_without_an_answer_is_refused_never_sent_again_and_takes_nothing(
    wire: Wire, quota: SharedQuota, fate: str
) -> None:
    wire.rule = getattr(wire, fate)
    with pytest.raises(Unavailable) as caught:
        await quota.claim([replace(ONE, amount=4)])
    assert caught.value.retry_after_s == 1
    with pytest.raises(Unavailable):
        await quota.claim([replace(ONE, amount=3)])
    wire.rule = None
    verdict = await quota.claim([ONE])
    assert verdict.granted
    assert verdict.budgets[0].remaining == 9
    assert [len(call.claims) for call in wire.calls] == [1, 1, 1]


@pytest.mark.parametrize("fate", ["lose_the_call", "lose_the_answer"])
@pytest.mark.parametrize(("amount", "left"), [(3, 2), (-3, 8)])
async def test_a_settlement_without_an_answer_is_sent_until_there_is_one_and_counts_once(
    wire: Wire, quota: SharedQuota, fate: str, amount: int, left: int
) -> None:
    await quota.claim([replace(ONE, amount=5)])
    wire.rule = getattr(wire, fate)
    quota.settle([replace(ONE, amount=amount)])
    await until(lambda: len(wire.calls) >= 4)
    wire.rule = None
    await until(lambda: not quota._away)
    assert await wire.left() == left


async def test_a_limiter_that_hangs_ends_in_unavailable(
    wire: Wire, quota: SharedQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)

    async def hang(payload: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    wire.rule = hang
    results = await asyncio.gather(*(quota.claim([ONE]) for _ in range(20)), return_exceptions=True)
    assert [type(r) for r in results] == [Unavailable] * 20
    assert len(wire.calls) == 1


async def test_a_call_that_arrives_after_its_successor_changes_nothing(
    wire: Wire, quota: SharedQuota
) -> None:
    wire.rule = wire.lose_the_call
    with pytest.raises(Unavailable):
        await quota.claim([replace(ONE, amount=5)])
    wire.rule = None
    assert (await quota.claim([ONE])).granted
    late = msgspec.msgpack.encode(wire.calls[0])
    await wire.limiter.take(late)
    assert await wire.left() == 9


async def test_a_call_that_arrives_twice_is_answered_alike_and_counts_once(
    wire: Wire, quota: SharedQuota
) -> None:
    async def twice(payload: bytes) -> bytes:
        first = await wire.limiter.take(payload)
        assert await wire.limiter.take(payload) == first
        return first

    wire.rule = twice
    assert (await quota.claim([ONE])).granted
    assert await wire.left() == 9


async def test_a_call_of_serve_that_is_cancelled_is_a_failure_and_not_the_end(
    wire: Wire, quota: SharedQuota
) -> None:
    async def cancelled(payload: bytes) -> bytes:
        raise asyncio.CancelledError

    wire.rule = cancelled
    with pytest.raises(Unavailable):
        await quota.claim([ONE])
    wire.rule = None
    assert (await quota.claim([ONE])).granted


async def test_settlements_kept_while_the_limiter_is_away_are_bounded(
    wire: Wire, quota: SharedQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SETTLEMENTS", 3)
    wire.rule = wire.lose_the_call
    for number in range(10):
        quota.settle([replace(ONE, bucket=f"b{number}")])
        quota.settle([replace(ONE, bucket="b0")])
    await until(lambda: len(wire.calls) >= 3)
    sums = {draw.bucket: draw.amount for draw in wire.calls[-1].settlements}
    assert sums == {"b0": 11, "b1": 1, "b2": 1}


async def test_draws_no_bucket_can_have_are_refused_here_and_harm_no_neighbour(
    wire: Wire, quota: SharedQuota
) -> None:
    neighbour = asyncio.create_task(quota.claim([ONE]))
    with pytest.raises(ValueError, match="per_second"):
        await quota.claim([replace(ONE, per_second=0)])
    quota.settle([replace(ONE, capacity=float("nan")), replace(ONE, amount=1)])  # the second counts
    assert (await neighbour).granted
    await quota.close()
    assert await wire.left() == 8


async def test_closing_sends_what_is_settled_and_refuses_what_comes_later(
    wire: Wire, quota: SharedQuota
) -> None:
    assert (await quota.claim([replace(ONE, amount=5)])).granted
    quota.settle([replace(ONE, amount=-5)])
    await quota.close()
    assert await wire.left() == 10
    with pytest.raises(Unavailable):
        await quota.claim([ONE])


async def test_closing_is_bounded_when_the_limiter_is_away(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    quota = wire.quota()
    wire.rule = wire.lose_the_call
    claim = asyncio.create_task(quota.claim([ONE]))
    quota.settle([ONE])
    async with asyncio.timeout(60):
        await quota.close()
    with pytest.raises(Unavailable):
        await claim


async def test_what_is_known_of_gateways_is_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GATEWAYS", 5)
    for number in range(20):
        await wire.limiter.take(msgspec.msgpack.encode(Call(f"g{number}", 1, 0, [], [(ONE,)])))
    assert list(wire.limiter._done) == [f"g{number}" for number in range(15, 20)]


def test_there_is_one_limiter() -> None:
    assert limiter_deployment().num_replicas == 1


async def dead(quota: SharedQuota) -> None:
    """What a SIGKILL leaves of a gateway: nothing more is sent."""
    quota._sender.cancel()
    await asyncio.wait({quota._sender})


async def test_what_a_dead_gateway_had_claimed_is_given_back(wire: Wire, quota: SharedQuota) -> None:
    other = wire.quota()
    assert (await other.claim([replace(ONE, amount=6)])).granted
    assert (await quota.claim([replace(ONE, amount=2)])).granted
    other.settle([replace(ONE, amount=-1, released=2)])  # one of its requests ended, and used 1 of 2
    await until(lambda: not other._settlements and not wire.open)
    await dead(other)
    await until(lambda: not wire.open)
    assert await wire.left() == 3
    for _ in range(5):
        wire.now += LEASE_S / 4
        quota.settle([replace(ONE, amount=0)])  # this one lives
        await until(lambda: not quota._settlements and not wire.open)
    assert await wire.left() == 7  # 4 were open; 1 was used by the dead, 2 are claimed by the living
    wire.now += LEASE_S / 4
    assert await wire.left() == 7  # once


async def test_a_gateway_that_was_taken_for_dead_settles_what_it_used(wire: Wire, quota: SharedQuota) -> None:
    assert (await quota.claim([replace(ONE, amount=6)])).granted
    await until(lambda: not wire.open)
    wire.now += LEASE_S + 1
    assert await wire.left() == 10
    quota.settle([replace(ONE, amount=2 - 6, released=6)])
    await until(lambda: not quota._settlements and not wire.open)
    assert await wire.left() == 8


async def test_a_limiter_that_restarted_is_told_what_was_used(wire: Wire, quota: SharedQuota) -> None:
    assert (await quota.claim([replace(ONE, amount=6)])).granted
    await until(lambda: not wire.open)
    wire.limiter = Limiter(lambda: wire.now)
    quota.settle([replace(ONE, amount=2 - 6, released=6)])
    await until(lambda: not quota._settlements and not wire.open)
    assert await wire.left() == 8


@pytest.mark.parametrize("lost", ["lose_the_answer", "lose_the_call"])
async def test_open_claims_are_right_whatever_got_lost(wire: Wire, quota: SharedQuota, lost: str) -> None:
    assert (await quota.claim([replace(ONE, amount=5)])).granted
    wire.rule = getattr(wire, lost)
    quota.settle([replace(ONE, amount=-4, released=5)])
    with pytest.raises(Unavailable):
        await quota.claim([replace(ONE, amount=3)])
    await until(lambda: wire.open == 0)
    wire.rule = None
    assert (await quota.claim([replace(ONE, amount=2)])).granted
    await until(lambda: not quota._settlements and not wire.open)
    assert await wire.left() == 7
    await dead(quota)
    wire.now += LEASE_S + 1
    assert await wire.left() == 9  # the 1 that was used is not given back


async def test_a_gateway_with_nothing_to_say_is_heard_of(
    wire: Wire, quota: SharedQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    await asyncio.sleep(0.05)
    assert not wire.calls  # a gateway without budgets never calls
    assert (await quota.claim([ONE])).granted
    await until(lambda: len(wire.calls) > 3)
    assert not any(call.claims or call.settlements for call in wire.calls[1:])
    assert module.BEAT_S * 5 < LEASE_S


async def test_a_grant_that_nobody_waited_for_leaves_no_open_claim(wire: Wire, quota: SharedQuota) -> None:
    claim = asyncio.create_task(quota.claim([replace(ONE, amount=3)]))
    await until(lambda: wire.open)
    claim.cancel()
    await until(lambda: len(wire.calls) == 2 and not wire.open)
    wire.now += LEASE_S + 1
    assert await wire.left() == 10
    assert not any(each.open for each in wire.limiter._reservations._gateways.values())
