"""Slots for states: who uses them, which are free, and which free slots still have states of a known prefix.

Integers only. The content of a slot is never changed while the slot is in use or known: a step never writes
to the slots that it reads. So sequences and prefixes can share slots, and a step that failed can run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from serve_app.engine.cache.blocks import IntegrityError

STEP_SLOTS: Final = 2  # of each sequence while a step runs: it reads one and writes another


class SlotPool:
    """Slots 0 .. num_slots-1 with reference counts."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._references = [0] * num_slots
        # Dictionaries as ordered sets: the oldest entry is the first.
        self._empty: dict[int, None] = dict.fromkeys(range(num_slots))
        self._known: dict[int, None] = {}  # free, and found by a key
        self._slots: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._found: set[int] = set()  # slots that a second sequence has found

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._known)

    def allocate(self) -> int:
        """A slot with one reference: an empty slot if there is one, else the known slot that has been free
        longest."""
        if self._empty:
            slot = next(iter(self._empty))
            del self._empty[slot]
        elif self._known:
            slot = next(iter(self._known))
            self._forget(slot)
            del self._empty[slot]
        else:
            raise IntegrityError("a slot was asked of a full pool")
        self._references[slot] = 1
        return slot

    def acquire(self, slot: int) -> None:
        """Add a reference to a slot that is in use or known."""
        if not self._references[slot]:
            del self._known[slot]
        self._references[slot] += 1

    def acquire_found(self, slot: int) -> None:
        """As `acquire`, for a sequence that found the slot by its key."""
        self.acquire(slot)
        self._found.add(slot)

    def release(self, slot: int) -> None:
        if not self._references[slot]:
            raise IntegrityError(f"slot {slot} was released more often than held")
        self._references[slot] -= 1
        if not self._references[slot]:
            (self._known if slot in self._keys else self._empty)[slot] = None

    def publish(self, slot: int, key: bytes) -> None:
        """Let a slot in use be found by a prefix key; if the key already has a slot, that one stays."""
        if key not in self._slots and slot not in self._keys:
            self._slots[key], self._keys[slot] = slot, key

    def find(self, key: bytes) -> int | None:
        return self._slots.get(key)

    def drop(self, key: bytes, *, unless_found: bool = False) -> None:
        """Forget a key, if it is known; with `unless_found`, only if no second sequence found the slot."""
        slot = self._slots.get(key)
        if slot is not None and not (unless_found and slot in self._found):
            self._forget(slot)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise IntegrityError unless `held` matches the references that exist exactly."""
        counted = Counter(held)
        for slot, count in enumerate(self._references):
            if counted[slot] != count:
                raise IntegrityError(f"slot {slot} has {count} references, but {counted[slot]} hold it")
            if (slot in self._empty) + (slot in self._known) + (count > 0) != 1:
                raise IntegrityError(f"slot {slot} is not in one of the states empty, known, held")
            if slot in self._known and slot not in self._keys:
                raise IntegrityError(f"slot {slot} counts as known and has no key")
        if {key: slot for slot, key in self._keys.items()} != self._slots:
            raise IntegrityError("the keys of slots and the slots of keys differ")

    def _forget(self, slot: int) -> None:
        del self._slots[self._keys.pop(slot)]
        self._found.discard(slot)
        if slot in self._known:
            del self._known[slot]
            self._empty[slot] = None
