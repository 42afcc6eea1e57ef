"""A replica that is told to stop hands its answers over, and no client notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest

from serve_app.deployments.gateway import handover
from serve_app.deployments.gateway.migrations import LEAVING
from serve_app.deployments.gateway.routed_stream import RoutedStream
from serve_app.errors import Overloaded, Unavailable
from serve_app.types import GenerateRequest, Prompt, SamplingParams, TokenDelta, UsageRecord
from tests.support.fake_replicas import FakeReplica, undisturbed
from tests.support.routed import Gateway, get, rest, steps, until

RECORD = UsageRecord(
    id="record", key_id="", endpoint="", entity="", kind="", route="", started=0.0, outcome="lost"
)
ASKED = GenerateRequest(
    id="r", model="m", prompt=Prompt(text="a"), sampling=SamplingParams(seed=7), timeout_s=100.0, n=2
)
RECORDED = replace(ASKED, record=RECORD)


async def asked(replica: FakeReplica) -> None:
    """Wait until `replica` has a request."""
    await until(lambda: replica.running)


@asynccontextmanager
async def begin(
    gateway: Gateway, request: GenerateRequest = ASKED
) -> AsyncIterator[tuple[FakeReplica, RoutedStream, list[TokenDelta]]]:
    """A replica that has `request`, its stream, and the first step of it, which was read."""
    old = gateway.add("a")
    with closing(gateway.route.generate(request)) as stream:
        yield old, stream, await steps(old, stream, 1)


@asynccontextmanager
async def leave(
    gateway: Gateway, request: GenerateRequest = ASKED
) -> AsyncIterator[tuple[FakeReplica, FakeReplica, RoutedStream, list[TokenDelta]]]:
    """The same, where that replica leaves and another one, the second, has been asked to go on."""
    async with begin(gateway, request) as (old, stream, deltas):
        new = gateway.add("b")
        old.leave()
        await asked(new)
        yield old, new, stream, deltas


async def test_another_replica_goes_on_and_the_old_one_is_free_at_once(gateway: Gateway) -> None:
    async with leave(gateway, RECORDED) as (old, new, stream, deltas):
        assert old.running  # until the new one has begun
        new.go()
        await until(lambda: not old.running)  # although nobody reads
        assert len(old.ledger(gateway.receiver.ticket)) == 0
        new.runs = True
        new.go()
        deltas += await rest(stream)
        assert deltas == undisturbed(RECORDED)
        assert stream.migrations == 1
    assert new.asked[0].resume is not None
    assert gateway.migrations.counts == {("m", LEAVING): 1}
    assert len(new.ledger(gateway.receiver.ticket)) == 1


async def test_the_client_that_waits_is_given_the_new_ones_deltas(gateway: Gateway) -> None:
    """What the old one made meanwhile is made again, and told once."""
    async with begin(gateway) as (old, stream, deltas):
        reading = asyncio.ensure_future(get(stream))
        new = gateway.add("b")
        old.leave()
        await asked(new)
        old.go(2)
        await asyncio.sleep(0.01)
        assert not reading.done()
        new.runs = True
        new.go()
        deltas += await reading + await rest(stream)
    assert deltas == undisturbed(ASKED)


@pytest.mark.parametrize("refusal", ["other weights", "full"])
async def test_where_the_new_one_refuses_the_old_one_goes_on(gateway: Gateway, refusal: str) -> None:
    async with begin(gateway) as (old, stream, deltas):
        other = gateway.add("b")
        if refusal == "full":
            other.refuses = Overloaded("full")
        else:
            other.weights = "other"
        old.leave()
        await until(lambda: len(other.asked) > 1)
        old.runs = True
        old.go()
        deltas += await rest(stream)
        assert deltas == undisturbed(ASKED)
        assert stream.migrations == 0
    await until(lambda: stream._handover is None)


async def test_one_that_refused_is_asked_again(gateway: Gateway) -> None:
    async with begin(gateway) as (old, stream, deltas):
        other = gateway.add("b")
        other.refuses = Overloaded("full")
        old.leave()
        await until(lambda: len(other.asked) > 1)
        deltas += await steps(old, stream, 1)  # between two attempts
        other.refuses, other.runs = None, True
        deltas += await rest(stream)
        assert deltas == undisturbed(ASKED)
        assert stream.migrations == 1


async def test_without_another_replica_nobody_is_asked(gateway: Gateway) -> None:
    async with begin(gateway) as (old, stream, deltas):
        gateway.remove(old)
        old.leave()
        await asyncio.sleep(0.02)
        assert len(gateway.handle.calls) == 1
        old.runs = True
        old.go()
        assert deltas + await rest(stream) == undisturbed(ASKED)


async def test_the_leaving_one_may_be_asked_and_refuses(gateway: Gateway) -> None:
    """Serve's router has not heard yet, and knows no other."""
    async with begin(gateway) as (old, stream, deltas):
        old.leave()
        await until(lambda: len(old.asked) > 2)
        assert len(old.running) == 1
        new = gateway.add("b", runs=True)
        deltas += await rest(stream)
    assert deltas == undisturbed(ASKED)
    assert new.asked


async def test_where_no_other_comes_up_the_client_is_told_that_the_model_restarts(gateway: Gateway) -> None:
    """Not that one replica stops, nor to come back as soon as that suggests."""
    gateway.add("a").leave()
    with closing(gateway.new_route(patience_s=0.05).generate(ASKED)) as stream:
        with pytest.raises(Unavailable, match="the model is restarting") as refused:
            await get(stream)
        assert refused.value.retry_after_s == 2.0


@pytest.mark.parametrize("takes", [True, False])
async def test_the_old_one_dies_while_the_new_one_is_asked(gateway: Gateway, takes: bool) -> None:
    async with leave(gateway) as (old, new, stream, deltas):
        reading = asyncio.ensure_future(get(stream))
        gateway.kill(old)
        await asyncio.sleep(0.01)
        assert not reading.done()
        if takes:
            new.runs = True
            new.go()
        else:
            gateway.add("c", runs=True)
            gateway.kill(new)
        deltas += await reading + await rest(stream)
        assert deltas == undisturbed(ASKED)
        assert stream.migrations == 1


async def test_the_old_one_ends_before_the_new_one_delivers(gateway: Gateway) -> None:
    async with leave(gateway) as (old, new, stream, deltas):
        old.go(20)
        deltas += await rest(stream)
        assert deltas == undisturbed(ASKED)
        assert stream.migrations == 0
        await until(lambda: new.aborted)
    assert gateway.handle.calls[1].cancelled()


async def test_the_client_stops_while_the_new_one_is_asked(gateway: Gateway) -> None:
    async with leave(gateway) as (old, new, stream, deltas):
        reading = asyncio.ensure_future(get(stream))
        old.go()
        await asyncio.sleep(0.01)
        stream.close()
        deltas += await reading  # what has come can still be read
        assert deltas == undisturbed(ASKED)[: len(deltas)]
        assert await get(stream) == []
        await until(lambda: not old.running and not new.running)


async def test_a_new_one_that_takes_too_long_is_given_up(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ASK_S", 0.02)
    async with begin(gateway) as (old, stream, deltas):
        new = gateway.add("b")
        old.leave()
        await until(lambda: len(new.asked) > 1)
        old.runs = True
        old.go()
        assert deltas + await rest(stream) == undisturbed(ASKED)
        await until(lambda: not new.running)


async def test_the_new_one_may_leave_too(gateway: Gateway) -> None:
    async with begin(gateway) as (old, stream, deltas):
        for name in "bcdefg":  # no number of these is too large: nobody died of the request
            new = gateway.add(name)
            gateway.remove(old)
            old.leave()
            await asked(new)
            if name == "c":
                new.leave()  # before it has begun
            new.go()
            deltas += await get(stream)
            old = new
        old.runs = True
        old.go()
        assert deltas + await rest(stream) == undisturbed(ASKED)
        assert stream.migrations == 6


async def test_what_has_no_token_yet_starts_over(gateway: Gateway) -> None:
    """A request that waits in the old replica's queue, and one that is answered whole."""
    old = gateway.add("a")
    whole = replace(ASKED, id="whole", stream=False)
    with closing(gateway.route.generate(ASKED)) as stream, closing(gateway.route.generate(whole)) as other:
        await until(lambda: len(old.running) == 2)
        new = gateway.add("b", runs=True)
        gateway.remove(old)
        old.leave()
        assert await rest(stream) == undisturbed(ASKED)
        assert await rest(other) == undisturbed(whole)
        await until(lambda: not old.running)
    assert [request.resume for request in new.asked] == [None, None]


async def test_what_starts_over_goes_on_by_the_weights_of_who_made_its_tokens(gateway: Gateway) -> None:
    """Not by those of the replica that left with a step that nobody had read."""
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await asked(old)
        old.go()
        await until(lambda: stream._call.inbox.started)
        other = gateway.add("b", weights="other")
        old.leave()
        await asked(other)
        deltas = await steps(other, stream, 2)
        third = gateway.add("c", weights="other", runs=True)
        gateway.kill(other)
        assert deltas + await rest(stream) == undisturbed(ASKED)
    assert third.asked[0].resume is not None
    assert third.asked[0].resume.weights == "other"


async def test_what_would_start_over_too_late_stays(gateway: Gateway) -> None:
    """It would run out of time: to start over takes as long as it took so far."""
    old = gateway.add("a")
    late = replace(ASKED, timeout_s=0.02)
    with closing(gateway.route.generate(late)) as stream:
        await asked(old)
        await asyncio.sleep(0.02)
        new = gateway.add("b", runs=True)
        old.leave()
        await asyncio.sleep(0.02)
        old.go(20)
        assert await rest(stream) == undisturbed(late)
    assert not new.asked
