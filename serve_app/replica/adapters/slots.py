"""The adapters of one replica: which are loaded, which requests use them, and which are dropped.

Each adapter in memory has a slot. Requests for an adapter that is being loaded wait for the same
load. If no slot is free, the adapter that no request uses and that was used least recently is dropped. Runs
on the event loop; the engine's driver loads and drops (see `loader.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from serve_app.errors import InvalidField, ModelNotFound, Overloaded, ServeError, UnsupportedField
from serve_app.replica.adapters.loader import AdaptingLoop
from serve_app.types import Adapter, GenerateRequest
from serve_app.types.adapter import TASK_PREFIX

SLOT_WAIT_S: Final = 10.0  # a request waits this long for a slot; then its client must retry


@dataclass(slots=True, eq=False)
class _Slot:
    """An adapter that is loaded, or being loaded."""

    loading: asyncio.Task[str]  # its result is the name of the adapter in the engine
    holders: int = 0


class AdapterSlots:
    """A bounded cache of adapters: by name and, if clients sent them, also by tenant."""

    def __init__(self, driver: AdaptingLoop, slots: int, names: Collection[str]) -> None:
        """`names` are the operator's adapters; `slots` may be 0."""
        self._driver = driver
        self._max_slots = slots
        self._names = frozenset(names)
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # the least recently used first
        self._changed = asyncio.Condition()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")  # one at a time: bounded memory

    @asynccontextmanager
    async def hold(self, request: GenerateRequest) -> AsyncIterator[str | None]:
        """Load the request's adapter, and keep it loaded during the block; yields its name in the engine.

        None for a request without an adapter. Raises ModelNotFound or UnsupportedField; raises InvalidField
        for weights that do not fit or were never sent, and Overloaded if all slots stay in use.
        """
        adapter = request.adapter
        if adapter is None:
            yield None
            return
        self._check(adapter)
        slot, name = await self._take(_key(adapter, request.salt), adapter, request.timeout_s)
        try:
            yield name
        finally:
            slot.holders -= 1
            await self._notify()

    def close(self) -> None:
        """Load nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check(self, adapter: Adapter) -> None:
        if not adapter.is_task:
            if adapter.name not in self._names:
                raise ModelNotFound("model", "the model has no such adapter")
        elif self._max_slots == 0:
            raise UnsupportedField("lora_task_id", "this model takes no adapters")
        elif (adapter.config is None) != (adapter.weights is None):
            field = "lora_config" if adapter.config is None else "lora_weights"
            raise InvalidField(field, "lora_weights and lora_config come together")

    async def _take(self, key: str, adapter: Adapter, timeout_s: float | None) -> tuple[_Slot, str]:
        """Count one more user of a slot, once its adapter is loaded."""
        while True:
            slot = self._slots.get(key)
            ours = slot is None
            if slot is None:
                _check_sent(adapter)
                if not await self._make_room(key, timeout_s):
                    continue  # another request is loading it by now
                slot = self._slots[key] = _Slot(asyncio.ensure_future(self._load(key, adapter)))
                slot.loading.add_done_callback(_seen)
            slot.holders += 1
            self._slots.move_to_end(key)
            try:
                # Shielded: other requests may want the adapter when this one has left.
                return slot, await asyncio.shield(slot.loading)
            except BaseException as error:
                slot.holders -= 1
                await self._notify()
                if ours or not isinstance(error, ServeError):
                    raise
                # The weights of another request were wrong; this request may have sent right ones.

    async def _load(self, key: str, adapter: Adapter) -> str:
        """Load the adapter in the thread for loading; if that fails, the slot is free again."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._driver.load_adapter, key, adapter)
        except BaseException:
            del self._slots[key]
            raise
        finally:
            await self._notify()

    async def _make_room(self, key: str, timeout_s: float | None) -> bool:
        """Wait for a free slot; returns False if `key` has meanwhile got a slot. Raises Overloaded."""
        wait_s = SLOT_WAIT_S if timeout_s is None else min(SLOT_WAIT_S, timeout_s)
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: key in self._slots or self._evict())
        except TimeoutError:
            raise Overloaded(
                f"All {self._max_slots} slots for adapters are in use.", retry_after_s=1.0
            ) from None
        return key not in self._slots

    def _evict(self) -> bool:
        """Make a slot free by dropping the least recently used idle adapter; returns whether one is free."""
        if len(self._slots) < self._max_slots:
            return True
        for key, slot in self._slots.items():
            if slot.holders == 0 and slot.loading.done():
                del self._slots[key]
                self._driver.drop_adapter(slot.loading.result())
                return True
        return False

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _seen(task: asyncio.Task[str]) -> None:
    """Mark a load's error as retrieved: the next request will get its own error."""
    if not task.cancelled():
        task.exception()


def _key(adapter: Adapter, salt: str) -> str:
    """The key of a slot: adapters that a client sent belong to its tenant, the operator's adapters to all."""
    return f"{adapter.name}@{salt}" if adapter.is_task else adapter.name


def _check_sent(adapter: Adapter) -> None:
    if adapter.is_task and adapter.weights is None:
        task = adapter.name.removeprefix(TASK_PREFIX)
        raise InvalidField(
            "lora_task_id", f"task {task} is not in the cache; send lora_weights and lora_config with it"
        )
