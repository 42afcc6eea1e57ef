"""Work that is counted, where a clock would tell of the machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def ticks_during(work: Coroutine[Any, Any, ResultT]) -> tuple[ResultT, int]:
    """The result of `work`, and how often another task of the event loop had its turn meanwhile."""
    ticks = 0

    async def heartbeat() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    beating = asyncio.create_task(heartbeat())
    result = await work
    beating.cancel()
    return result, ticks


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python `work` runs."""
    count = 0

    def line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += 1
        return line

    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
