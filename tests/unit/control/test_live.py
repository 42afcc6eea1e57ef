"""What gateways tell is summed up, each slot once, whatever is repeated or restarted; without a database."""

from __future__ import annotations

import pytest

from serve_app.control.live import Live
from serve_app.live.ring import AHEAD
from serve_app.types import Caller
from serve_app.types.control.live import (
    NUM_SLOTS,
    SLOT_S,
    EntityCounts,
    LiveSlot,
    LiveTold,
    ReadLive,
    TellLive,
)

ITSELF = Caller(key_id="gateway", scopes=frozenset(), salt="")
TAKEN, WANTS_ALL = LiveTold(wants_all=False), LiveTold(wants_all=True)


class Plane:
    def __init__(self) -> None:
        self.now = 1000 * SLOT_S
        self._live = Live(lambda: self.now)

    async def tell(self, gateway: str, *numbers: int, is_all: bool = False) -> LiveTold:
        slots = tuple(LiveSlot(number=number, entities=(COUNTS,)) for number in numbers)
        command = TellLive(gateway=gateway, slots=slots, is_all=is_all)
        told = await self._live.handlers()[TellLive](command, ITSELF)
        assert isinstance(told, LiveTold)
        return told

    async def requests(self, after: int = 0) -> dict[int, int]:
        """By the slot's number."""
        read = await self._live.handlers()[ReadLive](ReadLive(after=after), ITSELF)
        return {slot.number: slot.entities[0].requests for slot in read.slots}


COUNTS = EntityCounts(endpoint="chat", entity="a", requests=1)


async def test_slots_of_all_gateways_are_summed_up() -> None:
    plane = Plane()
    assert await plane.tell("g1", 990, 991, is_all=True) == TAKEN
    assert await plane.tell("g2", 991, is_all=True) == TAKEN
    assert await plane.tell("g1", 992) == TAKEN
    assert await plane.requests() == {990: 1, 991: 2, 992: 1}
    assert await plane.requests(after=991) == {992: 1}


async def test_a_slot_that_is_told_twice_counts_once() -> None:
    plane = Plane()
    await plane.tell("g1", 990, is_all=True)
    assert await plane.tell("g1", 990, 991) == TAKEN
    assert await plane.tell("g1", 990, 991, is_all=True) == TAKEN
    assert await plane.requests() == {990: 1, 991: 1}


async def test_a_control_plane_that_restarts_is_told_everything_again() -> None:
    plane = Plane()
    assert await plane.tell("g1", 995) == WANTS_ALL
    assert await plane.requests() == {}
    assert await plane.tell("g1", 990, 995, is_all=True) == TAKEN
    assert await plane.requests() == {990: 1, 995: 1}


async def test_a_gateway_whose_clock_was_set_back_is_heard_at_once() -> None:
    plane = Plane()
    await plane.tell("g1", 990, is_all=True)
    assert await plane.tell("g1", 5000) == TAKEN  # which means nothing
    assert await plane.tell("g1", 996) == TAKEN
    assert await plane.requests() == {990: 1, 996: 1}


async def test_a_gateway_that_was_silent_for_long_is_as_good_as_new() -> None:
    plane = Plane()
    await plane.tell("g1", 990, is_all=True)
    plane.now += (NUM_SLOTS + 10) * SLOT_S
    assert await plane.tell("g1", 1159) == WANTS_ALL
    assert await plane.tell("g1", 1159, is_all=True) == TAKEN
    assert await plane.requests() == {1159: 1}


async def test_a_clock_that_is_ahead_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    plane = Plane()
    far = 1000 + AHEAD + 1
    for _ in range(3):
        await plane.tell("g1", 999, far, is_all=True)
    await plane.tell("g2", 999, is_all=True)
    (record,) = caplog.records
    assert "gateway g1 are dropped: its clock is more than 30 s ahead" in record.getMessage()
    await plane.tell("g1", 1000)
    await plane.tell("g1", far + 1)
    assert len(caplog.records) == 2, "it was right in between"
