"""The replica's end of the channel: one connection to each gateway that sends it requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from serve_app.channel import frames
from serve_app.channel.ledger import Ledger, Settlement
from serve_app.channel.link import MAX_BACKLOG_BYTES, Link
from serve_app.errors import Unavailable
from serve_app.types import EngineStats, TokenDelta, UsageRecord

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
BROKEN: Final = "the connection between gateway and model broke; try again"


class Outlet:
    """The connection to one gateway: it sends deltas, and knows the requests that depend on it."""

    def __init__(
        self,
        ticket: frames.Ticket,
        beat: Callable[[], bytes],
        max_backlog_bytes: int,
        on_gone: Callable[[frames.Ticket, list[Settlement]], None],
    ) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ledger = Ledger(ticket.gateway)
        self._ticket = ticket
        self._on_gone = on_gone
        self._closing = False
        self.link = Link(
            on_frame=self._on_frame,
            on_close=self._on_close,
            beat=beat,
            max_backlog_bytes=max_backlog_bytes,
        )

    def send(self, deltas: list[TokenDelta]) -> None:
        """Send the deltas of one step. Never blocks: a gateway that does not read is disconnected."""
        self._ledger.note(deltas)
        for payload in frames.delta_frames(deltas):
            self.link.send(payload)

    def take(self, request_id: str) -> None:
        """Inform the gateway that this replica has a request or a question."""
        self.link.send(frames.encoder.encode(frames.Taken(request_id)))

    async def run(
        self, request_id: str, work: Coroutine[Any, Any, None], record: UsageRecord | None = None
    ) -> None:
        """Run `work`, which sends the request's deltas here, then send the request's end.

        If the gateway dies before it has recorded the tokens that were sent, `record` is settled with them.
        Raises Unavailable if the connection breaks before `work` ends. `work` is cancelled in that case, and
        when the caller is cancelled. Returns early when the gateway aborts the request.
        """
        if record is not None:
            self._ledger.open(request_id, record)
        task = self._running[request_id] = asyncio.ensure_future(work)
        self.take(request_id)
        try:
            if self.link.closed:
                task.cancel()
            await task
            self.link.send(frames.encoder.encode(frames.End(request_id)))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            if self.link.closed:
                raise Unavailable(BROKEN, retry_after_s=1.0) from None
        finally:
            del self._running[request_id]
            self._ledger.end(request_id)

    def leave(self) -> None:
        """Inform the gateway that this replica is stopping, and which requests it has."""
        self.link.send(frames.encoder.encode(frames.Leaving(list(self._running))))

    def close(self) -> None:
        """End the connection once everything sent is delivered."""
        self._closing = True
        self.link.close()

    def _on_frame(self, payload: bytes) -> None:
        message = frames.from_gateway.decode(payload)
        if isinstance(message, frames.Booked):
            self._ledger.booked(message.record_ids)
        elif isinstance(message, frames.Abort):
            self._ledger.drop(message.request_id)
            if message.request_id in self._running:
                self._running[message.request_id].cancel()

    def _on_close(self, reason: str) -> None:
        count = len(self._running)
        logger.info("channel: gateway %s left (%s), %d requests", self._ticket.gateway, reason, count)
        if not self._closing:  # else the gateway lives, and closes its records itself
            self._on_gone(self._ticket, self._ledger.settle())
        for task in tuple(self._running.values()):
            task.cancel()


class Sender:
    """The outlets of one replica, one for each gateway. An outlet is connected on first use."""

    def __init__(
        self,
        *,
        replica: str,
        app: str,
        weights: str = "",
        stats: Callable[[], EngineStats],
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        on_gone: Callable[[frames.Ticket, list[Settlement]], None] = lambda ticket, settlements: None,
    ) -> None:
        """`weights`: see `ModelInfo`. `on_gone` gets a gateway that went away, and its open records."""
        self._on_gone = on_gone
        self._replica = replica
        self._app = app
        self._weights = weights
        self._stats = stats
        self._max_backlog_bytes = max_backlog_bytes
        self._outlets: dict[str, asyncio.Task[Outlet]] = {}

    async def to(self, ticket: frames.Ticket) -> Outlet:
        """The outlet to the gateway of `ticket`. Raises Unavailable if the gateway cannot be reached."""
        self._forget_closed()
        task = self._outlets.get(ticket.gateway)
        if task is None:
            task = self._outlets[ticket.gateway] = asyncio.ensure_future(self._connect(ticket))
        try:
            # Shielded: other requests wait for the same connection.
            return await asyncio.shield(task)
        except (OSError, TimeoutError) as error:
            raise Unavailable("the gateway cannot be reached from the model") from error

    async def _connect(self, ticket: frames.Ticket) -> Outlet:
        outlet = Outlet(ticket, self._beat, self._max_backlog_bytes, self._on_gone)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: outlet.link, ticket.host, ticket.port)
        outlet.link.send(
            frames.encoder.encode(frames.Hello(ticket.token, self._replica, self._app, self._weights))
        )
        return outlet

    def _beat(self) -> bytes:
        return frames.encoder.encode(frames.Beat(self._stats()))

    def _forget_closed(self) -> None:
        for gateway, task in tuple(self._outlets.items()):
            if task.done() and (task.cancelled() or task.exception() or task.result().link.closed):
                del self._outlets[gateway]

    def leave(self) -> None:
        """Inform every gateway that this replica is stopping. The caller must refuse all later requests."""
        for outlet in filter(None, map(_connected, self._outlets.values())):
            outlet.leave()

    async def close(self) -> None:
        """End every connection once everything sent is delivered."""
        for task in self._outlets.values():
            if (outlet := _connected(task)) is not None:
                outlet.close()
            else:
                task.cancel()
        self._outlets.clear()


def _connected(task: asyncio.Task[Outlet]) -> Outlet | None:
    is_done = task.done() and not task.cancelled() and task.exception() is None
    return task.result() if is_done else None
