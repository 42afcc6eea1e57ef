"""Both stores of responses: what a caller gets of them, and what goes when it is too much or too old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from serve_app.api.backend import ResponseStore
from serve_app.api.response_store.control import ResponsesOfControlPlane
from serve_app.api.response_store.memory import OVERHEAD_BYTES, ResponsesInMemory
from serve_app.config import ResponsesConfig
from serve_app.control.database.database import Database
from serve_app.control.responses import responses as module
from serve_app.control.responses.responses import Responses
from serve_app.control.retention import Retention
from serve_app.types import Caller
from serve_app.types.control import Command, KeptResponse
from tests.support.databases import open_database

MIB: Final = 2**20
DAY_S: Final = 86_400.0
CONFIG: Final = ResponsesConfig(keep_days=2, megabytes_per_key=16)
ANN, BOB = (Caller(key_id=name, scopes=frozenset(), salt=f"salt of {name}") for name in ("ann", "bob"))
NAMESAKE: Final = Caller(key_id="ann", scopes=frozenset(), salt="salt of another key")

Stored = tuple[ResponseStore, Callable[[float], None]]  # and what lets seconds go by


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Plane:
    """A control plane of responses alone."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._handlers = Responses(database, CONFIG, clock).handlers()

    async def do(self, command: Command[Any], caller: Caller) -> Any:
        return await self._handlers[type(command)](command, caller)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def stored(request: pytest.FixtureRequest) -> Iterator[Stored]:
    clock = Clock()
    if request.param == "memory":
        yield ResponsesInMemory(CONFIG, clock=clock), clock.advance
        return
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    database = open_database(url)
    yield ResponsesOfControlPlane(Plane(database, clock)), clock.advance
    database.close()


def kept(id: str, previous: str = "", size: int = 10) -> KeptResponse:
    return KeptResponse(id=id, previous=previous, input=b"i" * size, response=id.encode())


async def test_a_caller_gets_what_it_keeps_and_nobody_else_does(stored: Stored) -> None:
    store, _ = stored
    first, second, other = kept("a"), kept("b", "a"), kept("c")
    for each in (first, second, other):
        await store.keep(each, ANN)
    assert await store.recall(("a", "c", "nothing"), "", ANN) == {"a": first, "c": other}
    assert await store.recall((), "b", ANN) == {"a": first, "b": second}
    assert await store.recall(("c",), "b", ANN) == {"a": first, "b": second, "c": other}
    for stranger in (BOB, NAMESAKE):
        assert await store.recall(("a", "c"), "b", stranger) == {}
        assert await store.forget("a", stranger) is False
    assert await store.forget("a", ANN) is True
    assert await store.forget("a", ANN) is False
    assert await store.recall(("a",), "b", ANN) == {"b": second}


async def test_a_chain_does_not_lead_to_another_key(stored: Stored) -> None:
    store, _ = stored
    await store.keep(kept("theirs"), BOB)
    mine = kept("mine", "theirs")
    await store.keep(mine, ANN)
    assert await store.recall((), "mine", ANN) == {"mine": mine}


async def test_what_was_not_used_for_long_is_gone(stored: Stored) -> None:
    store, advance = stored
    for id in ("used", "unused"):
        await store.keep(kept(id), ANN)
    for _ in range(3):
        advance(DAY_S)
        assert set(await store.recall(("used",), "", ANN)) == {"used"}
    assert await store.recall(("unused",), "", ANN) == {}
    assert await store.forget("unused", ANN) is False
    advance(3 * DAY_S)
    assert await store.recall(("used",), "", ANN) == {}


async def test_a_key_has_room_for_so_much_and_the_longest_unused_goes(stored: Stored) -> None:
    store, advance = stored
    await store.keep(kept("of bob"), BOB)
    for number in range(20):
        await store.keep(kept(f"r{number}", f"r{number - 1}", size=MIB), ANN)
        advance(100.0)
        assert set(await store.recall(("r0",), "", ANN)) == {"r0"}  # which is used all the time
    left = set(await store.recall(tuple(f"r{number}" for number in range(20)), "", ANN))
    assert {"r0", "r19", "r18", "r10"} <= left
    assert "r1" not in left
    assert len(left) * MIB <= CONFIG.bytes_per_key
    assert set(await store.recall(("of bob",), "", BOB)) == {"of bob"}


async def test_many_small_ones_count_as_well(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.api.response_store.memory.OVERHEAD_BYTES", MIB)
    monkeypatch.setattr(module, "SMALLEST_BYTES", MIB)
    store, advance = stored
    for number in range(20):
        await store.keep(kept(f"r{number}"), ANN)
        advance(1.0)
    left = await store.recall(tuple(f"r{number}" for number in range(20)), "", ANN)
    assert 10 <= len(left) <= 16
    assert "r19" in left


async def test_in_memory_all_keys_together_are_bounded_and_a_small_one_stays() -> None:
    store = ResponsesInMemory(CONFIG, most=4 * MIB)
    await store.keep(kept("small"), BOB)
    for number in range(8):
        await store.keep(kept(f"r{number}", size=MIB - OVERHEAD_BYTES), ANN)
        assert store.size <= 4 * MIB
    assert set(await store.recall(("small",), "", BOB)) == {"small"}
    assert set(await store.recall(("r0", "r7"), "", ANN)) == {"r7"}


async def test_old_rows_are_removed_from_the_database(each_database: Database) -> None:
    clock = Clock()
    plane = Plane(each_database, clock)
    store = ResponsesOfControlPlane(plane)
    await store.keep(kept("old"), ANN)
    clock.advance(DAY_S)
    await store.keep(kept("young"), ANN)
    clock.advance(1.5 * DAY_S)
    retention = Retention(each_database, 366, CONFIG.keep_days, clock=clock)
    assert await retention.sweep() == 1
    assert await retention.sweep() == 0
    assert set(await store.recall(("young",), "", ANN)) == {"young"}
