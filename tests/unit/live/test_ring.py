"""Five minutes of slots: summed up over gateways, and forgotten."""

from __future__ import annotations

from serve_app.live.ring import AHEAD, BEHIND, Ring, newest_settled, slot_at
from serve_app.types.control.live import NUM_SLOTS, SLOT_S, EntityCounts, LiveSlot, ReplicaLoad


class Clock:
    def __init__(self, slot: int) -> None:
        self.now = slot * SLOT_S

    def __call__(self) -> float:
        return self.now


def counts(entity: str = "a", **fields: object) -> EntityCounts:
    return EntityCounts(endpoint="chat", entity=entity, **fields)  # type: ignore[arg-type]


def test_slots_of_several_gateways_add_up_and_replicas_count_once() -> None:
    ring = Ring(Clock(1000))
    load = ReplicaLoad(app="app", running=3)
    ring.add(LiveSlot(number=998, entities=(counts(requests=2, first_token={3: 1}),), replicas={"r1": load}))
    ring.add(
        LiveSlot(
            number=998,
            entities=(counts(requests=1, errors=1, first_token={3: 1, 4: 2}), counts("b", in_flight=1)),
            replicas={"r1": ReplicaLoad(app="app", running=4), "r2": load},
        )
    )
    (slot,) = ring.after(0)
    assert slot.entities == (
        counts(requests=3, errors=1, first_token={3: 2, 4: 2}),
        counts("b", in_flight=1),
    )
    assert {name: each.running for name, each in slot.replicas.items()} == {"r1": 4, "r2": 3}


def test_slots_come_in_any_order_and_leave_in_theirs() -> None:
    ring = Ring(Clock(1000))
    for number in (997, 995, 999):
        ring.add(LiveSlot(number=number, entities=(counts(requests=1),)))
    assert [slot.number for slot in ring.after(995)] == [997, 999]


def test_what_is_older_than_five_minutes_is_forgotten_and_not_taken() -> None:
    clock = Clock(1000)
    ring = Ring(clock)
    ring.add(LiveSlot(number=999, entities=(counts(requests=1),)))
    clock.now += (NUM_SLOTS + BEHIND - 2) * SLOT_S
    assert [slot.number for slot in ring.after(0)] == [999]
    clock.now += SLOT_S
    ring.add(LiveSlot(number=999, entities=(counts(requests=1),)))
    assert ring.after(0) == ()


def test_the_first_slot_of_an_answer_is_still_there_at_any_moment() -> None:
    clock = Clock(1000)
    ring = Ring(clock)
    for number in range(1000 - 2 * NUM_SLOTS, 1000):
        ring.add(LiveSlot(number=number, entities=(counts(requests=1),)))
    for clock.now in (1000 * SLOT_S, 1000 * SLOT_S + 0.9, 1001 * SLOT_S - 0.1):
        newest = newest_settled(clock.now)
        found = [slot.number for slot in ring.after(newest - NUM_SLOTS) if slot.number <= newest]
        assert found == list(range(newest - NUM_SLOTS + 1, newest + 1))


def test_slots_of_a_clock_that_was_set_back_are_forgotten() -> None:
    clock = Clock(5000)
    ring = Ring(clock)
    ring.add(LiveSlot(number=4999, entities=(counts(requests=1),)))
    clock.now = 1000 * SLOT_S
    assert ring.after(0) == ()
    for number in (1000 + AHEAD, 1001 + AHEAD):
        ring.add(LiveSlot(number=number, entities=(counts(requests=1),)))
    assert [slot.number for slot in ring.after(0)] == [1000 + AHEAD]


def test_a_slot_is_settled_a_second_after_its_end() -> None:
    assert slot_at(21.9) == 10
    assert newest_settled(22.9) == 9
    assert newest_settled(23.0) == 10
