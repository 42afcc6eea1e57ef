"""An answer goes on where its replica is lost: real channel, replicas without a model."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest

from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.protocol.dialect import PromptDelta
from serve_app.channel.inbox import BROKEN, KILLED
from serve_app.deployments.gateway.migrations import ENGINE
from serve_app.deployments.gateway.next_step import ATTEMPTS
from serve_app.deployments.gateway.poison_requests import BARREN_DEATHS, DEATHS
from serve_app.deployments.gateway.routed_stream import MOVES
from serve_app.errors import EngineRefused, GenerationFailed, Overloaded, Unavailable
from serve_app.types import GenerateRequest, Prompt, SamplingParams, UsageRecord
from tests.support.fake_replicas import LENGTH, nameless, undisturbed
from tests.support.routed import WAIT_S, Gateway, get, rest, steps, until

ASKED = GenerateRequest(
    id="r", model="m", prompt=Prompt(text="a"), sampling=SamplingParams(seed=7), timeout_s=100.0
)


@pytest.mark.parametrize("lose", ["kill", "cut", "stop_engine"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
async def test_the_rest_is_that_of_the_undisturbed_answer(
    gateway: Gateway, lose: str, count: int, n: int
) -> None:
    asked = replace(ASKED, n=n)
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        deltas = await steps(old, stream, count)
        new = gateway.add("b", runs=True)
        getattr(old, lose)()
        deltas += await rest(stream)
        assert deltas == undisturbed(asked)
        assert stream.migrations == 1
    (sent,) = new.asked
    assert sent.id == "r~1"
    assert sent.resume is not None
    assert sent.resume.weights == "w"
    assert len(sent.resume.choices) == n
    assert sent.timeout_s is not None
    assert sent.timeout_s < 100.0
    # Of a connection that breaks in the middle, the gateway may hear from either side first.
    causes = {"kill": {KILLED}, "cut": {BROKEN, KILLED}, "stop_engine": {ENGINE}}[lose]
    (((app, cause), times),) = gateway.migrations.counts.items()
    assert (app, times) == ("m", 1)
    assert cause in causes


@pytest.mark.parametrize("lose", ["cut", "kill"])
async def test_an_answer_may_lose_several_replicas_but_not_any_number(gateway: Gateway, lose: str) -> None:
    """Processes that end with it make it suspect one loss earlier than connections that break."""
    asked = replace(ASKED, n=2)
    most = MOVES if lose == "cut" else DEATHS - 1
    replica = gateway.add("0")
    with closing(gateway.route.generate(asked)) as stream:
        deltas = await steps(replica, stream, 1)
        for number in range(1, most + 1):
            new = gateway.add(f"{number}")
            getattr(replica, lose)()
            reading = asyncio.ensure_future(get(stream))
            await until(lambda: new.running)  # noqa: B023
            new.go()
            deltas += await reading
            replica = new
        assert deltas == undisturbed(asked)[: len(deltas)]
        assert stream.migrations == most
        gateway.add("last", runs=True)
        getattr(replica, lose)()
        await until(lambda: lose == "cut" or not gateway.route._calls.watching)
        with pytest.raises(GenerationFailed if lose == "cut" else EngineRefused):
            await rest(stream)


async def test_an_answer_that_is_whole_needs_no_other_replica(gateway: Gateway) -> None:
    """Its replica is lost after the last delta, and before it said that this was the last."""
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await until(lambda: old.running)
        _, _, outlet = old.running["r"]
        outlet.send(undisturbed(ASKED))
        assert nameless(await get(stream)) == nameless(undisturbed(ASKED))
        gateway.kill(old)
        assert await get(stream) == []
        assert await get(stream) == []
    assert len(gateway.handle.calls) == 1


async def test_the_only_replica_is_waited_for(gateway: Gateway) -> None:
    old = gateway.add("a")
    gateway.returns = True
    with closing(gateway.route.generate(ASKED)) as stream:
        deltas = await steps(old, stream, 2)
        gateway.kill(old)
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: gateway.route.is_waited_for)
        assert not reading.done()
        gateway.add("b", runs=True)
        deltas += await reading
        assert deltas + await rest(stream) == undisturbed(ASKED)


async def test_a_replica_that_refuses_after_its_engine_and_then_ends_costs_no_attempt(
    gateway: Gateway,
) -> None:
    """Serve may know of its end later than the request, of which nothing was delivered."""
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await until(lambda: old.running)
        old.is_leaving = True
        old.stop_engine()
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: len(old.asked) > ATTEMPTS)
        old.kill()
        calls = len(gateway.handle.calls)
        await until(lambda: reading.done() or len(gateway.handle.calls) > calls + 1)
        gateway.add("b", runs=True)
        assert await reading + await rest(stream) == undisturbed(ASKED)
        assert stream.migrations == 1


@pytest.mark.parametrize("returns", [False, True])
async def test_what_no_replica_takes_ends_with_the_error_of_the_loss(gateway: Gateway, returns: bool) -> None:
    old = gateway.add("a")
    gateway.returns = returns
    route = gateway.new_route(patience_s=0.05)
    with closing(route.generate(ASKED)) as stream:
        await steps(old, stream, 1)
        gateway.kill(old)
        with pytest.raises(GenerationFailed):
            await get(stream)
        assert await get(stream) == []
        assert not route.is_waited_for


async def test_refusals_are_tried_again(gateway: Gateway) -> None:
    """Other weights, a full queue at the replica, a full queue before it: later it may be another replica."""
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        deltas = await steps(old, stream, 2)
        other = gateway.add("b", weights="other")
        gateway.kill(old)
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: len(other.asked) > 1)
        other.weights, other.refuses = "w", Overloaded("full")
        seen = len(other.asked)
        await until(lambda: len(other.asked) > seen + 1)
        other.is_full = True
        await until(lambda: len(gateway.handle.calls) > len(other.asked) + 2)
        other.refuses, other.is_full, other.runs = None, False, True
        deltas += await reading
        assert deltas + await rest(stream) == undisturbed(ASKED)
        assert stream.migrations == 1


async def test_a_replica_that_cannot_go_on_with_it_ends_it(gateway: Gateway) -> None:
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await steps(old, stream, 1)
        new = gateway.add("b")
        new.refuses = GenerationFailed("its prompt was told in part")
        gateway.kill(old)
        with pytest.raises(GenerationFailed):
            await get(stream)
    assert len(new.asked) == 1


async def test_the_deadline_and_the_client_end_the_wait(gateway: Gateway) -> None:
    for moment in ("no replica", "asked"):
        old = gateway.add("a")
        gateway.returns = True
        stream = gateway.route.generate(ASKED)
        await steps(old, stream, 1)
        gateway.kill(old)
        new = gateway.add("b") if moment == "asked" else None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stream.get()
        stream.close()
        await until(gateway.is_idle)
        if new is not None:
            await until(lambda: not new.running)  # noqa: B023
            gateway.remove(new)

        old = gateway.add("a")
        stream = gateway.route.generate(ASKED)
        await steps(old, stream, 1)
        gateway.kill(old)
        new = gateway.add("b") if moment == "asked" else None
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: gateway.route.is_waited_for)
        if new is not None:
            await until(lambda: new.running)  # noqa: B023
        stream.close()
        assert await reading == []
        await until(gateway.is_idle)
        if new is not None:
            await until(lambda: not new.running)  # noqa: B023
            gateway.remove(new)


async def test_an_answer_that_is_too_long_to_keep_is_not_moved(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.deployments.gateway.kept.MAX_KEPT", 2)
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        deltas = await steps(old, stream, 3)
        gateway.add("b", runs=True)
        gateway.kill(old)
        with pytest.raises(GenerationFailed):
            await get(stream)
    assert deltas == undisturbed(ASKED)[:3]
    assert len(gateway.handle.calls) == 1


@pytest.mark.parametrize("is_frozen", [False, True], ids=["killed", "frozen"])
@pytest.mark.parametrize(
    "asked",
    [replace(ASKED, best_of=2), replace(ASKED, stream=False), replace(ASKED, n=2, stream=False)],
    ids=["best_of", "whole", "whole, n 2"],
)
async def test_an_answer_that_nobody_saw_a_part_of_starts_over(
    gateway: Gateway, asked: GenerateRequest, is_frozen: bool
) -> None:
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        await until(lambda: old.running)
        old.progress()
        assert [delta.is_progress for delta in await get(stream)] == [True]
        new = gateway.add("b", runs=True)
        if is_frozen:
            (link,) = gateway.receiver.peers
            link.drop("the peer is silent")
        else:
            gateway.kill(old)
        assert await rest(stream) == undisturbed(asked)
    assert new.asked[0].resume is None


async def test_choices_that_ended_stay_and_others_start_over(gateway: Gateway) -> None:
    asked = replace(ASKED, n=3, stream=False)
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        await until(lambda: old.running)
        reading = asyncio.ensure_future(get(stream))
        while not reading.done():
            old.go()
            await asyncio.sleep(0.001)
        deltas = await reading
        assert 0 < len(deltas) < 3
        new = gateway.add("b", runs=True)
        gateway.kill(old)
        deltas += await rest(stream)
    assert deltas == undisturbed(asked)
    resume = new.asked[0].resume
    assert resume is not None
    assert [bool(choice.token_ids) for choice in resume.choices] == [c.finished for c in resume.choices]
    assert any(choice.finished for choice in resume.choices)


async def test_ranked_choices_that_were_told_in_part_cannot_go_on(gateway: Gateway) -> None:
    asked = replace(ASKED, n=2, best_of=3, stream=False)
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        await until(lambda: old.running)
        _, _, outlet = old.running["r"]
        outlet.send(undisturbed(asked)[:1])
        await get(stream)
        gateway.add("b", runs=True)
        gateway.kill(old)
        with pytest.raises(GenerationFailed):
            await get(stream)


async def test_every_replica_draws_with_the_same_seed(gateway: Gateway) -> None:
    asked = replace(ASKED, sampling=SamplingParams())
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        deltas = await steps(old, stream, 1)
        new = gateway.add("b", runs=True)
        gateway.kill(old)
        deltas += await rest(stream)
    seeded = replace(asked, sampling=old.asked[0].sampling)
    assert new.asked[0].sampling == seeded.sampling
    assert deltas == undisturbed(seeded)


async def test_what_ends_replicas_before_it_gets_a_token_is_refused(gateway: Gateway) -> None:
    """The first one had delivered something; the next ones die at once."""
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await steps(old, stream, 1)
        for number in range(BARREN_DEATHS):
            new = gateway.add(f"{number}")
            gateway.kill(old)
            if not number:
                reading = asyncio.ensure_future(get(stream))
            await until(lambda: new.running)  # noqa: B023
            old = new
        gateway.add("healthy", runs=True)
        gateway.kill(old)
        with pytest.raises(EngineRefused):
            await reading
    with pytest.raises(EngineRefused):
        gateway.route.generate(replace(ASKED, id="again", timeout_s=1.0, sampling=SamplingParams(seed=8)))


async def test_a_stopping_replica_refuses_and_the_next_one_is_found_in_time(gateway: Gateway) -> None:
    """Serve's router may send requests to a replica for a while after that was told to stop."""
    old = gateway.add("a", runs=True)
    old.leave()
    with closing(gateway.route.generate(ASKED)) as stream:
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: len(old.asked) > ATTEMPTS)
        gateway.remove(old)
        gateway.add("b", runs=True)
        assert await reading + await rest(stream) == undisturbed(ASKED)
        assert stream.migrations == 0


async def test_one_of_several_prompts_waits_for_a_replica_before_its_first_delta(gateway: Gateway) -> None:
    """Another one may have begun: no other entity can answer then."""
    gateway.returns = True
    asked = replace(ASKED, parent_id="all")
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        await until(lambda: old.running)
        gateway.kill(old)
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: gateway.route.is_waited_for)
        gateway.add("b", runs=True)
        assert await reading + await rest(stream) == undisturbed(asked)
    alone = gateway.route.generate(replace(ASKED, id="alone"))
    alone.close()


async def test_a_lone_request_that_nothing_was_delivered_of_fails_at_once(gateway: Gateway) -> None:
    gateway.returns = True
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await until(lambda: old.running)
        gateway.kill(old)
        with pytest.raises(Unavailable):
            await get(stream)


async def test_a_dead_replica_may_be_asked_again_until_serve_has_noticed(gateway: Gateway) -> None:
    old = gateway.add("a")
    with closing(gateway.route.generate(ASKED)) as stream:
        await until(lambda: old.running)
        old.kill()  # and Serve's router still knows it
        reading = asyncio.ensure_future(get(stream))
        await until(lambda: len(gateway.handle.calls) > ATTEMPTS + 1)
        gateway.remove(old)
        gateway.add("b", runs=True)
        assert await reading + await rest(stream) == undisturbed(ASKED)
        assert stream.migrations == 1


async def test_engines_that_die_again_and_again_end_the_answer(gateway: Gateway) -> None:
    replica = gateway.add("0")
    with closing(gateway.route.generate(ASKED)) as stream:
        await steps(replica, stream, 1)
        for number in range(1, MOVES + 1):
            new = gateway.add(f"{number}")
            replica.stop_engine()
            reading = asyncio.ensure_future(get(stream))
            await until(lambda: new.running)  # noqa: B023
            new.go()
            await reading
            replica = new
        gateway.add("last", runs=True)
        replica.stop_engine()
        with pytest.raises(Unavailable):
            await rest(stream)
        assert stream.migrations == MOVES


async def test_the_lost_replica_keeps_no_usage_of_what_another_one_told(gateway: Gateway) -> None:
    """Each replica's ledger has its own request; the record of the client is one."""
    record = UsageRecord(
        id="record", key_id="", endpoint="", entity="", kind="", route="", started=0.0, outcome="lost"
    )
    asked = replace(ASKED, record=record)
    old = gateway.add("a")
    with closing(gateway.route.generate(asked)) as stream:
        deltas = await steps(old, stream, 1)
        gateway.add("b", runs=True)
        gateway.kill(old)
        deltas += await rest(stream)
    assert deltas == undisturbed(asked)
    gateway.receiver.booked("record")
    assert not gateway.receiver._unbooked


@pytest.mark.parametrize("loss", ["kill", "leave"])
async def test_the_prompts_of_one_body_go_on_one_by_one(gateway: Gateway, loss: str) -> None:
    """One has ended, one has begun, and one has not when the replica goes."""
    gateway.returns = True
    old = gateway.add("a")
    asked = [replace(ASKED, id=f"r-{number}", parent_id="r", n=number + 1) for number in range(3)]
    with closing(CallStream(gateway.route, asked)) as stream:  # type: ignore[arg-type]
        await until(lambda: len(old.running) == 3)
        found: list[PromptDelta] = []
        for id, count in (("r-0", LENGTH), ("r-1", 1)):
            old.go(count, id)
        while len({prompt for prompt, _ in found}) < 2 or len(old.running) == 3:
            found += await asyncio.wait_for(stream.get(), WAIT_S)
        new = gateway.add("b", runs=True)
        gateway.kill(old) if loss == "kill" else old.leave()
        while deltas := await asyncio.wait_for(stream.get(), WAIT_S):
            found += deltas
        for number, request in enumerate(asked):
            assert [delta for prompt, delta in found if prompt == number] == undisturbed(request)
        assert stream.migrations == 2
    assert sorted(request.id for request in new.asked) == ["r-1~1", "r-2~1"]
    assert [request.resume is None for request in sorted(new.asked, key=lambda r: r.id)] == [False, True]
