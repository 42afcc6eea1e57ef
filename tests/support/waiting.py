"""Waiting for a condition, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.invariants import WAIT_S

T = TypeVar("T")


async def until(condition: Callable[[], object]) -> None:
    """Raises TimeoutError after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def eventually(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Ask until the answer is `wanted`. Raises AssertionError with the last one after `WAIT_S`."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while (answer := await ask()) != wanted:
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{answer!r} is not {wanted!r} yet")
        await asyncio.sleep(0.05)
