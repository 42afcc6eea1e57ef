"""The gateway's end of the channel: listens for replicas and gives each request its deltas."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from serve_app.channel.frames import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    MAX_MESSAGE_BYTES,
    Abort,
    Beat,
    Booked,
    DeltaFrame,
    End,
    FramePiece,
    Hello,
    Ticket,
    delta_decoder,
    encoder,
    from_replica,
)
from serve_app.channel.link import Link
from serve_app.errors import GenerationFailed, Overloaded, ServeError
from serve_app.types import EngineStats, TokenDelta

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 5.0
MAX_UNREAD_DELTAS: Final = 16_384  # a request with more, whose client reads too slowly, fails
BROKEN: Final = "the connection to the model broke; the answer is incomplete"


class Inbox:
    """A `DeltaStream` of one request, filled by the channel."""

    def __init__(self, receiver: Receiver, key: str, record_id: str | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._record_id = record_id
        self.started = False  # whether anything was delivered: a request may be retried only before
        self.ended = False  # whether the replica said that this was all
        self._closed = False
        self._receiver = receiver
        self._key = key
        self._peer: Link | None = None
        self._deltas: list[TokenDelta] = []
        self._error: ServeError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None

    async def get(self) -> list[TokenDelta]:
        """All deltas that came since the last call, waiting for the first; [] is the end.

        Raises the ServeError that the request failed with, once the deltas before it were read.
        """
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if self.ended or self._closed:
                return []
            self._wake = self._loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        deltas, self._deltas = self._deltas, []
        return deltas

    def end(self) -> None:
        """The replica sent everything."""
        self.ended = True
        self._forget_timer()
        self._notify()

    def fail(self, error: ServeError) -> None:
        """End the request with `error`, unless it has ended."""
        if not (self.ended or self._closed or self._error):
            self._error = error
            self._notify()

    def expect_end(self, within_s: float) -> None:
        """Fail the request unless it ends within `within_s`."""
        if not (self.ended or self._closed):
            self._overdue = self._loop.call_later(within_s, self.fail, GenerationFailed(BROKEN))

    def close(self) -> None:
        """Take no more deltas, and end who waits. A late delta is dropped, and its replica told to abort."""
        if self._closed:
            return
        self._closed = True
        self._forget_timer()
        self._receiver._inboxes.pop(self._key, None)
        if self._peer is not None and self._record_id is not None:
            self._receiver._unbooked.setdefault(self._record_id, set()).add(self._peer)
        self._notify()

    def _forget_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()  # it would hold this inbox for its whole wait

    def _push(self, delta: TokenDelta, peer: Link) -> None:
        if not delta.is_progress:
            self.started = True
            self._peer = peer
        if len(self._deltas) >= MAX_UNREAD_DELTAS:
            self.fail(Overloaded("the client reads too slowly"))
            return
        self._deltas.append(delta)

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


@dataclass(slots=True)
class Peer:
    """A connected replica, and the newest statistics that it sent."""

    replica: str
    app: str  # its Serve application
    stats: EngineStats | None = None
    pieces: bytearray = field(default_factory=bytearray)  # of a `DeltaFrame` that is not whole yet
    booked: list[str] = field(default_factory=list)  # ids of records, sent with the next beat


class Receiver:
    """Listens for replicas. Only holders of `ticket` may send deltas."""

    def __init__(self, gateway: str, token: bytes, app: str = "") -> None:
        """`app` is the gateway's Serve application, where replicas settle records that it left open."""
        self.ticket = Ticket("", 0, gateway, token, app)
        self._servers: list[asyncio.Server] = []
        self.peers: dict[Link, Peer] = {}
        self._links: set[Link] = set()
        self._inboxes: dict[str, Inbox] = {}
        self._unbooked: dict[str, set[Link]] = {}  # by record: who sent deltas for it

    @classmethod
    async def start(cls, host: str, app: str = "") -> Receiver:
        """A receiver that listens on `host`, at a port that the system picks."""
        receiver = cls(secrets.token_hex(8), secrets.token_bytes(32), app)
        await receiver.listen(host)
        return receiver

    async def listen(self, host: str) -> None:
        """Listen on `host`, an address of this machine, as well. New tickets name this address."""
        server = await asyncio.get_running_loop().create_server(self._link, host, 0)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self.ticket = Ticket(host, port, self.ticket.gateway, self.ticket.token, self.ticket.app)

    def open(self, key: str, record_id: str | None = None) -> Inbox:
        """The inbox of the request that replicas know as `key`.

        Replicas keep the usage of the record `record_id` until `booked` is called with that id.
        """
        if key in self._inboxes:
            raise ValueError(f"request {key} is open already")
        inbox = self._inboxes[key] = Inbox(self, key, record_id)
        return inbox

    def booked(self, record_id: str) -> None:
        """The record `record_id` is closed, and so are the inboxes of all its requests."""
        for link in self._unbooked.pop(record_id, ()):
            if (peer := self.peers.get(link)) is not None:
                peer.booked.append(record_id)

    def stats(self, app: str) -> list[EngineStats]:
        """The newest statistics of every connected replica of the application `app`."""
        return [peer.stats for peer in self.peers.values() if peer.app == app and peer.stats is not None]

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for link in tuple(self._links):
            self._tell_booked(link)
            link.close()

    # --- one connection --------------------------------------------------------------

    def _link(self) -> Link:
        # Before its hello a peer may send one small frame, and gets no answer.
        link = Link(
            on_frame=lambda payload: self._on_frame(link, payload),
            on_close=lambda reason: self._on_close(link, reason),
            beat=lambda: self._beat(link),
            max_frame_bytes=MAX_HELLO_BYTES,
        )
        self._links.add(link)
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, partial(self._expect_hello, link))
        return link

    def _beat(self, link: Link) -> bytes | None:
        self._tell_booked(link)
        return encoder.encode(Beat()) if link in self.peers else None

    def _tell_booked(self, link: Link) -> None:
        peer = self.peers.get(link)
        if peer is not None and peer.booked:
            ids, peer.booked = peer.booked, []
            link.send(encoder.encode(Booked(ids)))

    def _expect_hello(self, link: Link) -> None:
        if link in self._links and link not in self.peers:
            link.drop("the peer did not say hello")

    def _on_frame(self, link: Link, payload: bytes) -> None:
        message = from_replica.decode(payload)
        peer = self.peers.get(link)
        if peer is None:
            if not isinstance(message, Hello) or not hmac.compare_digest(message.token, self.ticket.token):
                link.drop("the peer has no ticket")
                return
            self.peers[link] = Peer(message.replica, message.app)
            link.max_frame_bytes = MAX_FRAME_BYTES
        elif isinstance(message, DeltaFrame):
            self._deliver(link, message.deltas)
        elif isinstance(message, FramePiece):
            self._join(link, peer, message)
        elif isinstance(message, End):
            inbox = self._inboxes.get(message.request_id)
            if inbox is not None:
                inbox.end()
        elif isinstance(message, Beat):
            peer.stats = message.stats

    def _join(self, link: Link, peer: Peer, piece: FramePiece) -> None:
        peer.pieces += piece.data
        if len(peer.pieces) > MAX_MESSAGE_BYTES:
            link.drop("a message is too large")
        elif piece.last:
            payload, peer.pieces = bytes(peer.pieces), bytearray()
            self._deliver(link, delta_decoder.decode(payload).deltas)

    def _deliver(self, link: Link, deltas: list[TokenDelta]) -> None:
        touched = set()
        for delta in deltas:
            inbox = self._inboxes.get(delta.request_id)
            if inbox is None:
                # Nobody reads this request, but its replica works on: a cancelled Serve call may do so.
                link.send(encoder.encode(Abort(delta.request_id)))
                continue
            inbox._push(delta, link)
            touched.add(inbox)
        for inbox in touched:
            inbox._notify()

    def _on_close(self, link: Link, reason: str) -> None:
        self._links.discard(link)
        peer = self.peers.pop(link, None)
        if peer is None:
            logger.warning("channel: an unknown peer was dropped: %s", reason)
            return
        logger.info("channel: replica %s of %s left: %s", peer.replica, peer.app, reason)
        for inbox in tuple(self._inboxes.values()):
            # A request without a delta is failed by its Serve call, and may move to another replica.
            if inbox._peer is link:
                inbox.fail(GenerationFailed(BROKEN))
