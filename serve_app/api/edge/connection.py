"""The connection of one client, who may leave, stop reading, or wait too long.

Watching for each of these costs a fixed amount per request, and nothing per event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.edge.body import JSON_TYPE, ClientGone

WRITE_TIMEOUT_S: Final = 30.0  # a client that does not read for this long is given up


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. If the client leaves, cancel it and raise ClientGone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        await cancel(task)
        raise ClientGone
    finally:
        await cancel(watch)
        await cancel(task)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel and wait, so that no part of the request outlives its handler."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # asyncio warns of an exception that is never retrieved


class Writer:
    """Sends a response, and drops a client that stops reading.

    A server's `send` waits while its socket buffer is full, so each request has at most one write in
    progress. One timer per request watches that write: a timer per write would cost more than the write.
    """

    def __init__(self, send: Send, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the write under way began
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False
        self.has_begun = False

    async def __aenter__(self) -> Self:
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if kind is asyncio.CancelledError and self.stalled:
            if self._task is not None:
                self._task.uncancel()
            raise ClientGone from None

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return self._since is not None

    async def send(self, message: Message) -> None:
        """Raises ClientGone if the connection broke. The `with` block raises it for a slow client."""
        self._since = self._loop.time()
        try:
            await self._send(message)
        except OSError:
            raise ClientGone from None
        finally:
            self._since = None

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.has_begun = True
        await self.send(head(status, headers))

    def body(self, data: bytes, *, more: bool = False) -> Coroutine[Any, Any, None]:
        """As `send`, but not itself a coroutine function, to save time for each event."""
        return self.send({"type": "http.response.body", "body": data, "more_body": more})

    def _look(self) -> None:
        if self._since is not None and self._loop.time() - self._since >= self._timeout_s:
            self.stalled = True
            if self._task is not None:
                self._task.cancel()
            return
        self._timer = self._loop.call_later(self._timeout_s / 4, self._look)


def head(status: int, headers: Mapping[str, str]) -> Message:
    """Send the head of a response."""
    return {"type": "http.response.start", "status": status, "headers": _raw(headers)}


async def reply(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send a whole response."""
    raw = [*_raw(headers), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def reply_json(
    send: Send, value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Send `value` as a complete JSON response; `headers` are sent beside its Content-Type."""
    await reply(send, status, {"content-type": JSON_TYPE, **(headers or {})}, msgspec.json.encode(value))


class JsonPage:
    """An ASGI app for a route without a body: it answers with JSON made from the request's scope."""

    def __init__(self, answer: Callable[[Scope], object]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Same errors as `answer`."""
        await reply_json(send, self._answer(scope))


async def reply_in_parts(send: Send, status: int, headers: dict[str, str], parts: Iterable[bytes]) -> None:
    """Send a long response in parts. Each part is made after the previous part was sent; other requests run
    in between."""
    await send(head(status, headers))
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
