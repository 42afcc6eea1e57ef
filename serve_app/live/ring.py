"""The slots of the last five minutes, in memory. The slots of several gateways are added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from serve_app.types.control.live import NUM_SLOTS, SLOT_S, EntityCounts, LiveSlot

SETTLE_S: Final = 1.0  # after its end a slot waits this long for reports of gateways
BEHIND: Final = 3  # slots of delay: an answer's end waits, and clocks differ a little
AHEAD: Final = 15  # slots: a clock may differ by half a minute; one further ahead was wrong

_SUMS: Final = ("requests", "errors", "refused", "prompt_tokens", "completion_tokens", "in_flight")


class Ring:
    """Takes slots in any order. Drops slots that are too old, or from a clock that was later set back."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._clock = clock
        self._slots: dict[int, LiveSlot] = {}

    def add(self, slot: LiveSlot) -> None:
        """Add the counts of `slot` to the counts already held for its number."""
        self._forget()
        if self.oldest < slot.number <= self.newest:
            before = self._slots.get(slot.number)
            self._slots[slot.number] = slot if before is None else joined(before, slot)

    def after(self, number: int) -> tuple[LiveSlot, ...]:
        """The slots with higher numbers, in ascending order. Empty slots are left out."""
        self._forget()
        return tuple(self._slots[each] for each in sorted(self._slots) if each > number)

    @property
    def oldest(self) -> int:
        """The number of the newest slot that has been dropped."""
        return slot_at(self._clock()) - NUM_SLOTS - BEHIND

    @property
    def newest(self) -> int:
        """The number of the newest possible slot."""
        return slot_at(self._clock()) + AHEAD

    def _forget(self) -> None:
        oldest, newest = self.oldest, self.newest
        for number in [each for each in self._slots if not oldest < each <= newest]:
            del self._slots[number]


def slot_at(seconds: float) -> int:
    """The number of the slot at this moment, in Unix seconds."""
    return int(seconds // SLOT_S)


def newest_settled(now: float) -> int:
    """The newest slot that is complete at `now`, in Unix seconds."""
    return slot_at(now - SETTLE_S) - 1


def joined(first: LiveSlot, second: LiveSlot) -> LiveSlot:
    """The union of two slots with the same number. If both contain the same replica, the second slot's entry
    counts."""
    return replace(
        first,
        entities=summed((*first.entities, *second.entities)),
        replicas={**first.replicas, **second.replicas},
    )


def summed(parts: Iterable[EntityCounts]) -> tuple[EntityCounts, ...]:
    """The sum of the counts for each served entity."""
    groups: dict[tuple[str, str], list[EntityCounts]] = {}
    for part in parts:
        groups.setdefault((part.endpoint, part.entity), []).append(part)
    return tuple(total(*key, same) for key, same in groups.items())


def total(endpoint: str, entity: str, parts: Iterable[EntityCounts]) -> EntityCounts:
    """The sum of `parts`, under the given names."""
    found = list(parts)
    return EntityCounts(
        endpoint=endpoint,
        entity=entity,
        **{name: sum(getattr(part, name) for part in found) for name in _SUMS},
        first_token=_added(part.first_token for part in found),
        inter_token=_added(part.inter_token for part in found),
    )


def _added(parts: Iterable[dict[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            found[bucket] = found.get(bucket, 0) + count
    return found
