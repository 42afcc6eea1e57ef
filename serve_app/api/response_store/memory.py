"""Responses kept in this gateway's memory: for servers without a control plane. They are lost when the
gateway stops."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from serve_app.config import ResponsesConfig
from serve_app.limits import MAX_KEPT_IN_MEMORY_BYTES, MAX_MESSAGES
from serve_app.types import Caller
from serve_app.types.control import KeptResponse, owner_of

OVERHEAD_BYTES: Final = 1024  # of a response besides its data
SWEEP_S: Final = 60.0  # between two sweeps of old responses


@dataclass(slots=True)
class _Kept:
    response: KeptResponse
    used: float

    @property
    def size(self) -> int:
        return OVERHEAD_BYTES + len(self.response.input) + len(self.response.response)


@dataclass(slots=True)
class _Owner:
    """The responses of one key, the least recently used first."""

    kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    size: int = 0

    def remove(self, id: str) -> bool:
        found = self.kept.pop(id, None)
        self.size -= 0 if found is None else found.size
        return found is not None

    def remove_oldest(self) -> None:
        self.remove(next(iter(self.kept)))


class ResponsesInMemory:
    """An `api.backend.ResponseStore`. No call waits."""

    def __init__(
        self,
        config: ResponsesConfig,
        *,
        most: int = MAX_KEPT_IN_MEMORY_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: the limit in bytes, for all keys together."""
        self._config = config
        self._most = most
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._swept = clock()

    @property
    def size(self) -> int:
        """The size in bytes of all keys' responses."""
        return sum(owner.size for owner in self._owners.values())

    async def keep(self, response: KeptResponse, caller: Caller) -> None:
        self._sweep()
        owner = self._owners.setdefault(owner_of(caller), _Owner())
        owner.remove(response.id)
        kept = owner.kept[response.id] = _Kept(response, self._clock())
        owner.size += kept.size
        while owner.size > self._config.bytes_per_key:
            owner.remove_oldest()
        while self.size > self._most:  # the key with most gives way, so that no key pushes out others
            max(self._owners.values(), key=lambda each: each.size).remove_oldest()

    async def recall(self, ids: Sequence[str], last: str, caller: Caller) -> dict[str, KeptResponse]:
        self._sweep()
        owner = self._owners.get(owner_of(caller), _Owner())
        found = {}
        for id in dict.fromkeys((*ids, *_chain(owner, last))):
            kept = owner.kept.get(id)
            if kept is not None:
                kept.used = self._clock()
                owner.kept.move_to_end(id)
                found[id] = kept.response
        return found

    async def forget(self, id: str, caller: Caller) -> bool:
        self._sweep()
        owner = self._owners.get(owner_of(caller))
        return owner is not None and owner.remove(id)

    def _sweep(self) -> None:
        """Remove the expired responses of all keys, at most once per sweep interval."""
        now = self._clock()
        if now < self._swept + min(SWEEP_S, self._config.keep_s):
            return
        self._swept = now
        for owner in self._owners.values():
            while owner.kept and next(iter(owner.kept.values())).used < now - self._config.keep_s:
                owner.remove_oldest()
        self._owners = {name: owner for name, owner in self._owners.items() if owner.kept}


def _chain(owner: _Owner, last: str) -> Iterator[str]:
    """The response `last` and all earlier responses of its conversation."""
    for _ in range(MAX_MESSAGES):
        kept = owner.kept.get(last)
        if kept is None:
            return
        yield last
        last = kept.response.previous
