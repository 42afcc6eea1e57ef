"""uvicorn's server without its ten polls a second; every replica and proxy of Serve has such a server.

Polling takes about 2 ms of CPU a second in each. Copies of the template use this class: `worker_template.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import uvicorn

DATE_S: Final = 1.0  # between two answers' headers with a new date, as uvicorn has it


class EventServer(uvicorn.Server):
    """Waits for the server's end without polling: setting `should_exit` ends it at once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._is_over = False
        self._over: asyncio.Event | None = None  # of the running loop, while the server runs
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(*arguments, **options)

    @property
    def should_exit(self) -> bool:
        return self._is_over

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._is_over = value
        if value and self._over is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)  # signals and other threads set it too

    async def main_loop(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        while not await self.on_tick(0):  # the tick 0 writes the date
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._over.wait()
