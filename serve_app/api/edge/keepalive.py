"""A stream of events that is kept alive by comments while there are no events.

Proxies between a client and this server may close an idle connection.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from starlette.types import Message, Send

from serve_app.api.edge.connection import WRITE_TIMEOUT_S, Writer, cancel, head

COMMENT: Final = b":\n\n"  # a line of server-sent events that begins with a colon is a comment


class KeptAlive(Writer):
    """A writer that sends a comment whenever nothing was sent for `seconds`, once comments are allowed.

    If nothing else has begun the answer, the first comment does; then a later failure cannot set the status.
    """

    def __init__(self, send: Send, seconds: float, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        super().__init__(send, timeout_s)
        self._seconds = seconds
        self._headers: dict[str, str] = {}
        self._sent = self._loop.time()  # when the last write ended
        self._next: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None  # under way

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._no_more()
        if self._comment is not None:
            await cancel(self._comment)
        await super().__aexit__(kind, error, trace)

    def allow(self, headers: dict[str, str]) -> None:
        """Allow comments; the first comment sends these headers if it begins the answer."""
        self._headers = headers
        if self._next is None:
            self._sent = self._loop.time()
            self._wait(self._seconds)

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Same errors as `send`. Does nothing if a comment has begun the answer."""
        await self._quiet()
        if not self.has_begun:
            await super().start(status, headers)

    async def send(self, message: Message) -> None:
        await self._quiet()
        if not message.get("more_body", True):
            self._no_more()
        await super().send(message)
        self._sent = self._loop.time()

    async def _quiet(self) -> None:
        """Wait until no comment is being written, because a server accepts only one write at a time."""
        if self._comment is not None:
            await self._comment

    def _wait(self, seconds: float) -> None:
        self._next = self._loop.call_later(seconds, self._pulse)

    def _no_more(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _pulse(self) -> None:
        left = self._sent + self._seconds - self._loop.time()
        if left <= 0 and self.is_writing:
            left = self._seconds
        if left > 0:
            self._wait(left)
        else:
            self._comment = self._loop.create_task(self._say_comment())

    async def _say_comment(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            await super().send(head(200, self._headers))
        await super().send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        self._sent = self._loop.time()
        self._comment = None
        self._wait(self._seconds)
