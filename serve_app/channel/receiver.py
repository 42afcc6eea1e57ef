"""The gateway's end of the channel: listens for replicas and gives each request its deltas."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from serve_app.channel import frames
from serve_app.channel.inbox import BROKEN, KILLED, Inbox, ReplicaLost, ReplicaSilent
from serve_app.channel.link import Link
from serve_app.types import EngineStats, TokenDelta

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 5.0
COUNTERS: Final = (  # fields of EngineStats that only grow while an engine lives
    *("steps", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions"),
    *("draft_tokens", "accepted_tokens", "computed_tokens"),
)
REMEMBERED: Final = 64  # former replicas of an application that are recognised if they return


@dataclass(slots=True)
class Peer:
    """A connected replica, and the newest statistics that it sent."""

    replica: str
    app: str  # its Serve application
    weights: str = ""  # `ModelInfo.weights`
    stats: EngineStats | None = None
    pieces: bytearray = field(default_factory=bytearray)  # of a `DeltaFrame` that is not whole yet
    booked: list[str] = field(default_factory=list)  # ids of records, sent with the next beat


class Receiver:
    """Listens for replicas. Only holders of `ticket` may send deltas."""

    def __init__(self, gateway: str, token: bytes, app: str = "") -> None:
        """`app` is the gateway's Serve application. If the gateway dies, replicas send its open records to
        that application."""
        self.on_silence: Callable[[str], None] = lambda app: None  # a replica of that application fell silent
        self.ticket = frames.Ticket("", 0, gateway, token, app)
        self._servers: list[asyncio.Server] = []
        self.peers: dict[Link, Peer] = {}
        self._links: set[Link] = set()
        self._inboxes: dict[str, Inbox] = {}
        self._unbooked: dict[str, set[Link]] = {}  # by record: the replicas that sent deltas for it
        self._departed: dict[str, Departed] = {}  # by application

    @classmethod
    async def start(cls, host: str, app: str = "") -> Receiver:
        """A receiver that listens on `host`, at a port that the system picks."""
        receiver = cls(secrets.token_hex(8), secrets.token_bytes(32), app)
        await receiver.listen(host)
        return receiver

    async def listen(self, host: str) -> None:
        """Listen also on `host`, another address of this machine. New tickets name this address."""
        server = await asyncio.get_running_loop().create_server(self._link, host, 0)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self.ticket = frames.Ticket(host, port, self.ticket.gateway, self.ticket.token, self.ticket.app)

    def open(
        self, key: str, record_id: str | None = None, on_leaving: Callable[[], None] | None = None
    ) -> Inbox:
        """The inbox of the request that replicas know as `key`.

        Replicas keep the usage of `record_id` until `booked` is called with that id. `on_leaving` is called
        when the replica that has the request begins to stop.
        """
        if key in self._inboxes:
            raise ValueError(f"request {key} is open already")
        inbox = self._inboxes[key] = Inbox(key, record_id, self._forget, on_leaving)
        return inbox

    def _forget(self, inbox: Inbox) -> None:
        self._inboxes.pop(inbox.key, None)
        if inbox.link is not None and inbox.record_id is not None:
            self._unbooked.setdefault(inbox.record_id, set()).add(inbox.link)

    def booked(self, record_id: str) -> None:
        """Record that `record_id` is closed, and so are the inboxes of all its requests."""
        for link in self._unbooked.pop(record_id, ()):
            if (peer := self.peers.get(link)) is not None:
                peer.booked.append(record_id)

    def stats(self, app: str) -> list[EngineStats]:
        """The newest statistics of every connected replica of the application `app`."""
        return [peer.stats for peer in self.peers.values() if peer.app == app and peer.stats is not None]

    def by_replica(self, app: str) -> dict[str, EngineStats]:
        """The same statistics as `stats`, by replica id."""
        peers = self.peers.values()
        return {peer.replica: peer.stats for peer in peers if peer.app == app and peer.stats is not None}

    def departed(self, app: str) -> EngineStats:
        """The summed counters of the replicas of `app` that have left."""
        departed = self._departed.get(app)
        return EngineStats() if departed is None else departed.counts

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
            max_frame_bytes=frames.MAX_HELLO_BYTES,
        )
        self._links.add(link)
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, partial(self._expect_hello, link))
        return link

    def _beat(self, link: Link) -> bytes | None:
        self._tell_booked(link)
        return frames.encoder.encode(frames.Beat()) if link in self.peers else None

    def _tell_booked(self, link: Link) -> None:
        peer = self.peers.get(link)
        if peer is not None and peer.booked:
            ids, peer.booked = peer.booked, []
            link.send(frames.encoder.encode(frames.Booked(ids)))

    def _expect_hello(self, link: Link) -> None:
        if link in self._links and link not in self.peers:
            link.drop("the peer did not say hello")

    def _on_frame(self, link: Link, payload: bytes) -> None:
        message = frames.from_replica.decode(payload)
        peer = self.peers.get(link)
        if peer is None:
            if not isinstance(message, frames.Hello) or not hmac.compare_digest(
                message.token, self.ticket.token
            ):
                link.drop("the peer has no ticket")
                return
            self.peers[link] = Peer(message.replica, message.app, message.weights)
            link.max_frame_bytes = frames.MAX_FRAME_BYTES
        elif isinstance(message, frames.DeltaFrame):
            self._deliver(link, peer, message.deltas)
        elif isinstance(message, frames.FramePiece):
            self._join(link, peer, message)
        elif isinstance(message, frames.Taken):
            if (inbox := self._inboxes.get(message.request_id)) is not None:
                inbox.link = link
            else:
                link.send(frames.encoder.encode(frames.Abort(message.request_id)))
        elif isinstance(message, frames.End):
            inbox = self._inboxes.get(message.request_id)
            if inbox is not None:
                inbox.end()
        elif isinstance(message, frames.Beat):
            if peer.stats is None and peer.app in self._departed:
                self._departed[peer.app].returned(peer.replica)
            peer.stats = message.stats
        elif isinstance(message, frames.Leaving):
            self._leave(link, peer, message.request_ids)

    def _join(self, link: Link, peer: Peer, piece: frames.FramePiece) -> None:
        peer.pieces += piece.data
        if len(peer.pieces) > frames.MAX_MESSAGE_BYTES:
            link.drop("a message is too large")
        elif piece.last:
            payload, peer.pieces = bytes(peer.pieces), bytearray()
            self._deliver(link, peer, frames.delta_decoder.decode(payload).deltas)

    def _deliver(self, link: Link, peer: Peer, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            inbox = self._inboxes.get(delta.request_id)
            if inbox is None:
                # The request has no reader, but its replica goes on: this may happen after
                # a cancelled Serve call.
                link.send(frames.encoder.encode(frames.Abort(delta.request_id)))
                continue
            inbox.push(delta, link, peer.weights)

    def _leave(self, link: Link, peer: Peer, request_ids: list[str]) -> None:
        logger.info("channel: replica %s of %s leaves", peer.replica, peer.app)
        for key in request_ids:
            if (inbox := self._inboxes.get(key)) is not None:
                inbox.leave(link)

    def _on_close(self, link: Link, reason: str) -> None:
        self._links.discard(link)
        peer = self.peers.pop(link, None)
        if peer is None:
            logger.warning("channel: an unknown peer was dropped: %s", reason)
            return
        logger.info("channel: replica %s of %s left: %s", peer.replica, peer.app, reason)
        if peer.stats is not None and peer.replica not in self.by_replica(peer.app):
            self._departed.setdefault(peer.app, Departed()).left(peer.replica, peer.stats)
        for inbox in tuple(self._inboxes.values()):
            if inbox.link is not link:
                continue
            if inbox.started:
                inbox.fail(ReplicaLost(KILLED if link.peer_closed else BROKEN))
            elif (
                not link.peer_closed
            ):  # otherwise its Serve call fails it, and shows whether the process ended
                inbox.fail(ReplicaSilent())
        if not link.peer_closed:
            self.on_silence(peer.app)


class Departed:
    """The last counts of replicas that have left one application.

    Without them, an application's counts would fall when a replica leaves, and Prometheus would see a
    restart.
    """

    def __init__(self) -> None:
        self._by_replica: dict[str, dict[str, int]] = {}
        self._others = dict.fromkeys(COUNTERS, 0)  # of those that left longer ago

    def left(self, replica: str, stats: EngineStats) -> None:
        self._by_replica.pop(replica, None)
        self._by_replica[replica] = {name: getattr(stats, name) for name in COUNTERS}
        if len(self._by_replica) > REMEMBERED:
            oldest = self._by_replica.pop(next(iter(self._by_replica)))
            for name, count in oldest.items():
                self._others[name] += count

    def returned(self, replica: str) -> None:
        """Drop the counts of a replica that lost its connection and is back: it sends its own counts."""
        self._by_replica.pop(replica, None)

    @property
    def counts(self) -> EngineStats:
        """The sums of counters; every other field is 0."""
        parts = [self._others, *self._by_replica.values()]
        sums: dict[str, Any] = {name: sum(part[name] for part in parts) for name in COUNTERS}
        return EngineStats(**sums)
