"""The deltas of one request from one replica, until the request's reader takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from serve_app.channel.frames import Abort, encoder
from serve_app.channel.link import Link
from serve_app.errors import GenerationFailed, Overloaded, ServeError, Unavailable
from serve_app.types import TokenDelta

MAX_UNREAD_DELTAS: Final = 16_384  # a request with more, whose client reads too slowly, fails
INCOMPLETE: Final = "the connection to the model broke; the answer is incomplete"

# Why an answer lost its replica.
KILLED: Final = "killed"  # the process ended, or closed the connection
BROKEN: Final = "broken"  # the connection broke, or the replica fell silent


class ReplicaLost(GenerationFailed):
    """A replica went away in the middle of an answer. Another replica may continue the answer."""

    def __init__(self, cause: str) -> None:
        """`cause`: KILLED or BROKEN."""
        super().__init__(INCOMPLETE)
        self.cause = cause


class ReplicaSilent(Unavailable):
    """A replica fell silent after it had accepted a request, and before it sent a delta for it. Another
    replica may answer the request."""

    cause = BROKEN

    def __init__(self) -> None:
        super().__init__("the model does not answer; try again", retry_after_s=1.0)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Inbox:
    """A stream of the deltas of one request to one replica, which the channel fills."""

    key: str  # the request's id, as its replica knows it
    record_id: str | None  # the usage record that replicas keep a part of
    _on_close: Callable[[Inbox], None]
    _on_leaving: Callable[[], None] | None = None  # called when the replica that has the request is stopping
    link: Link | None = field(default=None, init=False)  # to the replica, once it has taken the request
    weights: str = field(default="", init=False)  # `ModelInfo.weights` of the replica, once it delivered
    started: bool = field(default=False, init=False)  # whether anything was delivered
    ended: bool = field(default=False, init=False)  # whether the replica sent its end
    is_leaving: bool = field(default=False, init=False)  # whether the replica is stopping
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _is_closed: bool = field(default=False, init=False)
    _deltas: list[TokenDelta] = field(default_factory=list, init=False)
    _error: ServeError | None = field(default=None, init=False)
    _wake: asyncio.Future[None] | None = field(default=None, init=False)
    _overdue: asyncio.TimerHandle | None = field(default=None, init=False)
    _is_held: bool = field(default=False, init=False)
    _on_held_end: Callable[[], None] | None = field(default=None, init=False)

    @property
    def is_answered(self) -> bool:
        """Whether a replica has said that it has the request, or the request has ended."""
        return self.link is not None or self.ended or self._error is not None

    async def get(self) -> list[TokenDelta]:
        """All deltas that came since the last call; waits for the first one; [] is the end.

        Raises the ServeError with which the request failed, after the deltas before it have been read.
        """
        while (wake := self.coming()) is not None:
            await wake
        return self.take()

    def coming(self) -> asyncio.Future[None] | None:
        """The future that `get` awaits next; None: `take` need not wait.

        For readers that avoid the coroutine of `get`, since each step of each stream would make a new one.
        """
        if self._is_closed:
            return None
        if not self._is_held and (self._deltas or self.ended or self._error is not None):
            return None
        self._wake = self._loop.create_future()
        return self._wake

    def take(self) -> list[TokenDelta]:
        """The result or error of `get`. May be called after `coming` has returned None, before the event loop
        goes on."""
        if not self._deltas and self._error is not None and not self._is_closed:
            raise self._error
        deltas, self._deltas = self._deltas, []
        return deltas

    async def begun(self, *, by_progress: bool = True) -> None:
        """Wait for the first delta, or for the end. Must not be called while another task is in `get`.

        `by_progress`: a progress delta also ends the wait. Raises the ServeError with which the request
        failed before its first delta.
        """
        while not (self.started or (by_progress and self._deltas) or self.ended or self._is_closed):
            if self._error is not None:
                raise self._error
            self._wake = self._loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def hold(self, on_end: Callable[[], None]) -> None:
        """Make `get` wait until `release` or the end of the request, even if deltas arrive."""
        self._is_held = True
        self._on_held_end = on_end

    def release(self) -> None:
        """Let `get` return the deltas that arrived meanwhile."""
        self._is_held = False
        self._on_held_end = None
        self._notify()

    def end(self) -> None:
        """The replica sent everything."""
        self.ended = True
        self._forget_timer()
        on_end = self._on_held_end
        self.release()
        if on_end is not None:
            on_end()

    def fail(self, error: ServeError) -> None:
        """End the request with `error`, unless it has ended."""
        if not (self.ended or self._is_closed or self._error):
            self._error = error
            self._notify()

    def lose(self, error: ServeError) -> None:
        """End the request with `error`, and drop unread deltas."""
        self._deltas.clear()
        self.ended = False
        self._error = error
        self._notify()

    def expect_end(self, within_s: float) -> None:
        """Fail the request unless it ends within `within_s`."""
        if not (self.ended or self._is_closed):
            self._overdue = self._loop.call_later(within_s, self.fail, ReplicaLost(BROKEN))

    def close(self) -> None:
        """Take no more deltas, and end a waiting reader. A late delta is dropped, and its replica aborts."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_leaving = self._on_held_end = None
        self._forget_timer()
        self._on_close(self)
        self._notify()

    def abandon(self) -> None:
        """Close, drop unread deltas, and let the replica forget the request: another replica has it."""
        self._deltas.clear()
        self.close()
        if self.link is not None:
            self.link.send(encoder.encode(Abort(self.key)))

    def _forget_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()  # the timer would keep this inbox alive for its whole wait

    def push(self, delta: TokenDelta, link: Link, weights: str) -> None:
        """Take a delta from the replica at `link`, which runs `weights`."""
        if not self.started and not delta.is_progress:
            self.started = True
            self.link = link
            self.weights = weights
        if len(self._deltas) >= MAX_UNREAD_DELTAS:
            self.fail(Overloaded("the client reads too slowly"))
            return
        self._deltas.append(delta)
        if self._wake is not None and not self._wake.done():  # as in `_notify`, which a delta need not call
            self._wake.set_result(None)

    def leave(self, link: Link) -> None:
        """Note that the replica at `link`, which has the request, is stopping."""
        self.link = link
        self.is_leaving = True
        if self._on_leaving is not None and not self.ended:
            self._on_leaving()

    def _notify(self) -> None:
        """Wake the reader after the whole frame, so that it gets all deltas of a step together."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
