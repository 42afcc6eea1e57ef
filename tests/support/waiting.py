"""Waiting for a condition, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.invariants import WAIT_S


async def until(condition: Callable[[], object]) -> None:
    """Raises TimeoutError after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)
