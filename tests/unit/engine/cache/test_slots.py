"""Slots for states: references, known prefixes, and what is given up first."""

from __future__ import annotations

import pytest

from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.cache.slots import SlotPool


def test_a_slot_lives_as_long_as_it_is_held() -> None:
    pool = SlotPool(2)
    slot = pool.allocate()
    pool.acquire(slot)
    pool.release(slot)
    pool.check_integrity([slot])
    pool.release(slot)
    pool.check_integrity([])
    with pytest.raises(IntegrityError, match="released more often"):
        pool.release(slot)


def test_a_full_pool_gives_up_the_prefix_that_was_used_the_longest_ago() -> None:
    pool = SlotPool(3)
    slots = [pool.allocate() for _ in range(3)]
    for slot, key in zip(slots, (b"a", b"b", b"c"), strict=True):
        pool.publish(slot, key)
        pool.release(slot)
    pool.acquire_found(slots[0])
    pool.release(slots[0])
    assert pool.allocate() == slots[1]
    assert (pool.find(b"a"), pool.find(b"b"), pool.find(b"c")) == (slots[0], None, slots[2])
    held = [slots[1], pool.allocate(), pool.allocate()]
    pool.check_integrity(held)
    with pytest.raises(IntegrityError, match="full"):
        pool.allocate()


def test_a_held_slot_is_never_given_up() -> None:
    pool = SlotPool(2)
    held = pool.allocate()
    pool.publish(held, b"a")
    other = pool.allocate()
    assert other != held
    pool.release(other)
    assert pool.allocate() == other
    assert pool.find(b"a") == held


def test_a_key_can_be_dropped_unless_a_second_sequence_has_found_it() -> None:
    pool = SlotPool(2)
    slot = pool.allocate()
    pool.publish(slot, b"a")
    pool.acquire_found(slot)
    pool.drop(b"a", unless_found=True)
    assert pool.find(b"a") == slot
    pool.drop(b"a")
    pool.drop(b"unknown")
    assert pool.find(b"a") is None
    pool.release(slot)
    pool.release(slot)
    assert pool.num_free == 2
    pool.check_integrity([])


def test_a_lost_reference_is_noticed() -> None:
    pool = SlotPool(2)
    slot = pool.allocate()
    with pytest.raises(IntegrityError, match="1 references, but 0 hold it"):
        pool.check_integrity([])
    with pytest.raises(IntegrityError):
        pool.check_integrity([slot, slot])
