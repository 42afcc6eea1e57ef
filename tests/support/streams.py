"""Streams of deltas for tests: of an async generator, and of a model server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import closing, suppress
from functools import wraps
from typing import Any

from serve_app.api.backend import DeltaStream
from serve_app.replica.served_model import ServedModel
from serve_app.types import GenerateRequest, TokenDelta

Deltas = list[TokenDelta]


async def lists(stream: DeltaStream) -> AsyncGenerator[Deltas, None]:
    """Each list of deltas of `stream`, which is closed at the end."""
    with closing(stream):
        while deltas := await stream.get():
            yield deltas


class GeneratedStream:
    """The lists of an async generator, made when they are asked for. `async for` reads it too."""

    migrations = 0

    def __init__(self, source: AsyncGenerator[Deltas, None]) -> None:
        self._source = source
        self._next: asyncio.Future[Deltas] | None = None
        self._closed = False

    async def get(self) -> Deltas:
        if self._closed:
            return []
        self._next = asyncio.ensure_future(anext(self._source, []))
        try:
            return await self._next
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return []
        finally:
            self._next = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._next is not None:
            self._next.cancel()
        else:
            with suppress(StopIteration):  # the end of a generator that does not wait in its `finally`
                self._source.aclose().send(None)

    def __aiter__(self) -> AsyncIterator[Deltas]:
        return lists(self)


def streamed(generate: Callable[..., AsyncGenerator[Deltas, None]]) -> Callable[..., GeneratedStream]:
    """A backend's `generate`, written as an async generator."""

    @wraps(generate)
    def stream(*args: Any) -> GeneratedStream:
        return GeneratedStream(generate(*args))

    return stream


class ServerStream:
    """The deltas of one request to a model server of this process. `async for` reads it too."""

    migrations = 0

    def __init__(self, server: ServedModel, request: GenerateRequest) -> None:
        self._arrived: asyncio.Queue[Deltas] = asyncio.Queue()
        self._ended = False
        self._task = asyncio.ensure_future(server.generate(request, self))
        self._task.add_done_callback(lambda _: self._arrived.put_nowait([]))

    def send(self, deltas: Deltas) -> None:
        self._arrived.put_nowait(deltas)

    async def get(self) -> Deltas:
        if self._ended:
            return []
        deltas = await self._arrived.get()
        if not deltas:
            self._ended = True
            if not self._task.cancelled():
                self._task.result()  # raises what it refused
        return deltas

    def close(self) -> None:
        self._task.cancel()

    def __aiter__(self) -> AsyncIterator[Deltas]:
        return lists(self)
