"""The slots of one gateway: all that happens is in exactly one of them, and nothing runs while it is idle."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from serve_app.api.admission.under_way import UnderWay
from serve_app.api.live import pulse as module
from serve_app.api.live.live import Live
from serve_app.api.live.pulse import Pulse
from serve_app.errors import Unavailable
from serve_app.telemetry import Metrics, absent
from serve_app.types import EngineStats, Usage
from serve_app.types.control.live import SLOT_S, LiveSlot, LiveSlots
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import CHAT, chat_body, gateway

WAIT_S = 60.0


class Made:
    """A pulse whose slots are ended by the test."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.metrics = Metrics(self.backend.stats)
        self.under_way = UnderWay()
        self.now = 1000 * SLOT_S
        self.pulse = Pulse(self.metrics, self.under_way, self.backend, lambda: self.now)

    def sample(self) -> LiveSlot:
        self.now += SLOT_S
        return self.pulse.sample()


class Request:
    def __init__(self) -> None:
        self.who = ("chat", "a")
        self.usage = Usage()


def test_nothing_happened() -> None:
    made = Made()
    slot = made.sample()
    assert slot == LiveSlot(number=1000)
    assert slot.is_empty


def test_answers_are_in_one_slot_by_how_they_ended() -> None:
    made = Made()
    for status in ("200", "429", "404", "500", "generation_failed", "cancelled"):
        made.metrics.request_done("chat", "a", "/v1/chat/completions", status, 0.1)
    made.metrics.request_done("unknown", "unknown", "/v1/chat/completions", "404", 0.1)
    (counts,) = made.sample().entities
    assert (counts.requests, counts.errors, counts.refused) == (6, 2, 2)
    assert made.sample().is_empty


def test_tokens_count_while_they_are_made() -> None:
    made = Made()
    stream = Request()
    made.under_way.begin(stream)
    stream.usage = Usage(prompt_tokens=5, completion_tokens=3)
    (counts,) = made.sample().entities
    assert (counts.prompt_tokens, counts.completion_tokens, counts.in_flight) == (5, 3, 1)
    stream.usage = Usage(prompt_tokens=5, completion_tokens=10, discarded_tokens=1)
    (counts,) = made.sample().entities
    assert (counts.prompt_tokens, counts.completion_tokens, counts.in_flight) == (0, 8, 1)
    (counts,) = made.sample().entities  # nothing came, but it is under way
    assert (counts.completion_tokens, counts.in_flight) == (0, 1)
    stream.usage = replace(stream.usage, completion_tokens=12)
    made.under_way.end(stream)
    (counts,) = made.sample().entities
    assert (counts.completion_tokens, counts.in_flight) == (2, 0)
    assert made.sample().is_empty


def test_tokens_go_to_the_entity_that_made_them() -> None:
    made = Made()
    stream = Request()
    made.under_way.begin(stream)
    stream.usage = Usage(completion_tokens=4)
    assert made.sample().entities[0].completion_tokens == 4
    stream.who, stream.usage = ("chat", "b"), Usage()  # it failed over and begins anew
    (counts,) = made.sample().entities
    assert (counts.entity, counts.completion_tokens, counts.in_flight) == ("b", 0, 1)
    stream.usage = Usage(completion_tokens=2)
    assert made.sample().entities[0].completion_tokens == 2


def test_latencies_are_in_one_slot() -> None:
    made = Made()
    timings = made.metrics.timings("chat", "a")
    timings.first(0.2)
    timings.next(0.03)
    timings.next(0.03)
    (counts,) = made.sample().entities
    assert list(counts.first_token.values()) == [1]
    assert list(counts.inter_token.values()) == [2]
    timings.next(0.03)
    (counts,) = made.sample().entities
    assert counts.first_token == {}
    assert list(counts.inter_token.values()) == [1]
    assert made.sample().is_empty


def test_replicas_with_nothing_to_do_are_left_out() -> None:
    made = Made()
    made.backend.loads = {
        "app": {"r1": EngineStats(running=2, blocks_total=9, blocks_used=3), "r2": EngineStats()}
    }
    slot = made.sample()
    assert list(slot.replicas) == ["r1"]
    assert (slot.replicas["r1"].app, slot.replicas["r1"].blocks_used) == ("app", 3)


async def test_an_endpoint_that_comes_back_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent, "KEPT_S", 0.0)
    async with gateway() as g:
        services = g.app.state.services
        pulse, endpoints = services.live.pulse, list(services.directory)
        await g.client.post(CHAT, json=chat_body(stream=True))
        [counts] = pulse.sample().entities
        services.metrics.request_done(counts.endpoint, counts.entity, CHAT, "500", 0.1)
        [counts] = pulse.sample().entities
        assert (counts.requests, counts.errors) == (1, 1)
        page = (await g.client.get("/metrics")).text
        services.directory.take([])
        assert f'endpoint="{counts.endpoint}"' in page
        assert f'endpoint="{counts.endpoint}"' not in (await g.client.get("/metrics")).text
        services.directory.take(endpoints)
        for _ in range(3):
            await g.client.post(CHAT, json=chat_body(stream=True))
        [counts] = pulse.sample().entities
        assert counts.requests == sum(counts.first_token.values()) == 3
        assert (counts.errors, counts.refused) == (0, 0)
        assert all(count > 0 for count in (*counts.first_token.values(), *counts.inter_token.values()))


async def test_a_timer_runs_only_while_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOT_S", 0.05)
    backend = FakeBackend()
    metrics, under_way = Metrics(backend.stats), UnderWay()
    pulse = Pulse(metrics, under_way, backend)
    told = asyncio.Event()
    pulse.on_slot = told.set
    stream = Request()
    under_way.begin(stream)
    pulse.wake()
    async with asyncio.timeout(WAIT_S):
        for _ in range(3):  # it goes on by itself
            await told.wait()
            told.clear()
        under_way.end(stream)
        while pulse.is_awake:
            await asyncio.sleep(0.01)
        metrics.request_done("chat", "a", "/", "200", 0.1)
        pulse.wake()
        assert pulse.is_awake
        await told.wait()
    pulse.close()


async def test_a_request_wakes_the_pulse_of_its_gateway_and_is_in_its_slots() -> None:
    async with gateway() as g:
        pulse = g.app.state.services.live.pulse
        assert not pulse.is_awake
        answer = await g.client.post(CHAT, json=chat_body(stream=True))
        assert answer.status_code == 200
        assert pulse.is_awake
        (counts,) = pulse.sample().entities
        assert (counts.endpoint, counts.entity, counts.requests, counts.errors) == ("demo", "demo", 1, 0)
        assert counts.prompt_tokens == 5
        assert counts.completion_tokens > 0
        assert sum(counts.first_token.values()) == 1
        assert counts.in_flight == 0
        pulse.close()


class Cluster:
    def __init__(self) -> None:
        self.is_away = False
        self.told = 0

    def tell(self) -> None:
        self.told += 1

    async def read(self, after: int) -> LiveSlots:
        if self.is_away:
            raise Unavailable("away")
        return LiveSlots(slots=(LiveSlot(number=after + 1),))


async def test_slots_are_those_of_all_gateways_and_of_this_one_while_nobody_sums_them_up() -> None:
    made, cluster = Made(), Cluster()
    live = Live(made.pulse)
    made.pulse.slots.add(LiveSlot(number=990))
    own = await live.after(980)
    assert ([slot.number for slot in own.slots], own.is_whole) == ([990], False)
    live.join(cluster)
    made.pulse.on_slot()
    assert cluster.told == 1
    whole = await live.after(980)
    assert ([slot.number for slot in whole.slots], whole.is_whole) == ([981], True)
    cluster.is_away = True
    assert await live.after(980) == own
