"""The deltas of several requests as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from serve_app.api.backend import Backend, DeltaStream
from serve_app.types import GenerateRequest, TokenDelta

# Lists of deltas. Further deltas wait in each request's own bounded inbox.
UNREAD: Final = 256


class MergedStream:
    """A `DeltaStream` of several requests, at most `at_once` of them running."""

    def __init__(self, backend: Backend, requests: Sequence[GenerateRequest], at_once: int) -> None:
        self._backend = backend
        self._slots = asyncio.Semaphore(at_once)
        self._room = asyncio.Semaphore(UNREAD)
        self._arrived: asyncio.Queue[list[TokenDelta] | BaseException] = asyncio.Queue()
        self._streams: list[DeltaStream] = []
        self._tasks = [asyncio.ensure_future(self._pump(request)) for request in requests]
        self._left = len(self._tasks)  # those whose end was not read yet
        for task in self._tasks:
            task.add_done_callback(self._pumped)

    @property
    def migrations(self) -> int:
        return sum(stream.migrations for stream in self._streams)

    async def get(self) -> list[TokenDelta]:
        while self._left:
            item = await self._arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item:
                self._room.release()
                return item
            self._left -= 1
        return []

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for stream in self._streams:
            stream.close()

    async def _pump(self, request: GenerateRequest) -> None:
        async with self._slots:
            stream = self._backend.generate(request)
            self._streams.append(stream)
            while deltas := await stream.get():
                await self._room.acquire()
                self._arrived.put_nowait(deltas)

    def _pumped(self, task: asyncio.Task[None]) -> None:
        self._arrived.put_nowait([] if task.cancelled() else task.exception() or [])
