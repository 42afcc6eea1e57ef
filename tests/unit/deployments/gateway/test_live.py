"""A gateway tells its slots while there are some, and reads those of all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.admission.under_way import UnderWay
from serve_app.api.live.pulse import Pulse
from serve_app.channel.calls import decode_command, decode_reply, encode_command, encode_reply
from serve_app.control.live import Live
from serve_app.deployments.gateway.control.live import RemoteLive
from serve_app.errors import Unavailable
from serve_app.live.ring import slot_at
from serve_app.telemetry import Metrics
from serve_app.types import Caller
from serve_app.types.control.live import SLOT_S, EntityCounts, LiveSlot, ReplicaLoad
from tests.support.fakes_backend import FakeBackend
from tests.support.waiting import until

WAIT_S = 60.0


class Management:
    """A control plane that is reached over bytes, and may be away."""

    def __init__(self) -> None:
        self.plane = Live()
        self.feed = SimpleNamespace(is_connected=True)
        self.fails = False
        self.calls = 0
        self.held = asyncio.Event()  # calls wait while it is not set
        self.held.set()

    async def call(self, command: Any, caller: Caller, within_s: float) -> Any:
        self.calls += 1
        await self.held.wait()
        if self.fails:
            raise Unavailable("away")
        got, who = decode_command(encode_command(command, caller))
        return decode_reply(command, encode_reply(await self.plane.handlers()[type(got)](got, who)))


class Made:
    def __init__(self, name: str, management: Management) -> None:
        backend = FakeBackend()
        self.pulse = Pulse(Metrics(backend.stats), UnderWay(), backend)
        self.live = RemoteLive(name, self.pulse, management)  # type: ignore[arg-type]  # what it needs of it
        self.first = slot_at(SLOT_S * self.pulse.slots.oldest) + 10

    async def does(self, place: int, **fields: Any) -> None:
        """A slot ends. Returns when the control plane was told, or could not be."""
        counts = EntityCounts(endpoint="chat", entity="a", **fields)
        load = ReplicaLoad(app="app", running=1)
        self.pulse.slots.add(LiveSlot(number=self.first + place, entities=(counts,), replicas={"r": load}))
        self.live.tell()
        await self._told()

    async def polled(self) -> None:
        """The control plane answered a poll."""
        self.live.tell_again()
        await self._told()

    async def _told(self) -> None:
        if (task := self.live.telling) is not None:
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait({task})

    async def sees(self) -> list[int]:
        """The requests of all gateways, slot by slot."""
        return [slot.entities[0].requests for slot in (await self.live.read(self.first - 1)).slots]


async def test_slots_of_two_gateways_are_read_by_both() -> None:
    management = Management()
    one, two = Made("g1", management), Made("g2", management)
    two.first = one.first
    await one.does(0, requests=1, first_token={3: 1})
    await two.does(0, requests=2)
    await one.does(1, requests=4)
    assert await one.sees() == await two.sees() == [3, 4]


async def test_what_was_not_taken_goes_with_the_next_slot() -> None:
    management = Management()
    made = Made("g1", management)
    await made.does(0, requests=1)
    management.fails = True
    await made.does(1, requests=2)
    management.fails = False
    await made.does(2, requests=3)
    assert await made.sees() == [1, 2, 3]


async def test_a_control_plane_that_restarted_has_all_of_the_five_minutes() -> None:
    management = Management()
    made = Made("g1", management)
    await made.does(0, requests=1)
    await made.does(1, requests=2)
    management.plane = Live()
    await made.does(2, requests=3)
    assert await made.sees() == [1, 2, 3]


async def test_what_happened_while_the_control_plane_was_away_is_told_when_it_answers() -> None:
    """Also where nothing happens any more, and where the one that answers is another one."""
    management = Management()
    made = Made("g1", management)
    await made.does(0, requests=1)
    management.feed.is_connected = False
    await made.does(1, requests=2)
    management.plane = Live()
    management.feed.is_connected = True
    await made.polled()
    assert await made.sees() == [1, 2]
    management.plane = Live()  # in the place of one that was told everything
    await made.polled()
    assert await made.sees() == [1, 2]


async def test_a_slot_that_ends_while_another_is_told_is_told_as_well() -> None:
    management = Management()
    made = Made("g1", management)
    management.held.clear()
    telling = asyncio.ensure_future(made.does(0, requests=1))
    await until(lambda: management.calls == 1)
    second = asyncio.ensure_future(made.does(1, requests=2))
    await asyncio.sleep(0)
    management.held.set()
    await asyncio.gather(telling, second)
    assert await made.sees() == [1, 2]


async def test_where_nothing_happened_a_poll_brings_no_call() -> None:
    management = Management()
    await Made("g1", management).polled()
    assert management.calls == 0


async def test_nobody_is_called_while_the_control_plane_is_away() -> None:
    management = Management()
    management.feed.is_connected = False
    made = Made("g1", management)
    await made.does(0, requests=1)
    assert management.calls == 0
    with pytest.raises(Unavailable):
        await made.sees()
    assert management.calls == 0
