"""How ranks find rank 0: they dial it and show its secret. From then on each has three connections with it.

Rank 0 listens only until all ranks are connected. A peer without the secret is disconnected before any of its
data is decoded. Depends on sockets alone, so that a rank shows signs of life before it imports torch.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import msgspec

log = logging.getLogger(__name__)

START_S: Final = 120.0  # for the processes of all ranks to start; they load afterwards
HELLO_S: Final = 5.0  # for what a peer says first
LOOK_S: Final = 0.2
BACKLOG: Final = 256  # peers that dial at the same time
MAX_STRANGERS: Final = 64  # peers that have not said hello; if there are more, the oldest is dropped
# A machine that is gone acknowledges no packet. Signs of life without an answer end a rank after this time.
UNANSWERED_MS: Final = 10_000
_HELLO: Final = struct.Struct(">32sHBI")  # token, rank, which connection, process
_KINDS: Final = ("life", "work", "store")


class _Invitation(msgspec.Struct, frozen=True, array_like=True):
    """The address at which rank 0 waits for the other ranks, and the secret that they show."""

    host: str
    port: int
    token: bytes


class RankRefused(Exception):
    """A rank cannot take part; the message says why."""


@dataclass(slots=True)
class Connections:
    """Those between rank 0 and another rank."""

    life: socket.socket  # see `life`
    work: socket.socket  # see `commands`
    store: socket.socket  # see `store`
    host: str  # the address of the rank's machine, as rank 0 sees it
    pid: int  # of the rank, on its machine

    def close(self) -> None:
        """Wakes what waits for one of them, in any thread."""
        for each in (self.life, self.work, self.store):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def dial(invitation: bytes, rank: int) -> Connections:
    """Connect this process, as `rank`, with the rank 0 that has sent the invitation. Raises OSError."""
    to = msgspec.msgpack.decode(invitation, type=_Invitation)
    made = []
    for kind in range(len(_KINDS)):
        connection = socket.create_connection((to.host, to.port), START_S)
        connection.settimeout(None)
        connection.sendall(_HELLO.pack(to.token, rank, kind, os.getpid()))
        made.append(_tuned(connection))
    life, work, store = made
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        life.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
    return Connections(life, work, store, life.getsockname()[0], os.getpid())


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


@dataclass(slots=True)
class _Stranger:
    """A peer that has not said hello."""

    connection: socket.socket
    since: float
    said: bytes = b""


@dataclass
class _Arrived:
    """The connections of one rank so far, by kind."""

    pid: int
    found: dict[int, socket.socket] = field(default_factory=dict)


class Meeting:
    """Rank 0 waits here for the others."""

    def __init__(self, host: str) -> None:
        """Listen at `host`, an address of this machine."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        port: int = self._listener.getsockname()[1]
        self._token = secrets.token_bytes(32)
        self.invitation = msgspec.msgpack.encode(_Invitation(host, port, self._token))
        self._strangers: list[_Stranger] = []
        self._arrived: dict[int, _Arrived] = {}

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening; after an error, drop the ranks that are connected."""
        self._listener.close()
        left = [each.connection for each in self._strangers]
        if error is not None:
            left += [each for rank in self._arrived.values() for each in rank.found.values()]
        for each in left:
            each.close()

    def gather(
        self,
        ranks: Iterable[int],
        *,
        ended: Callable[[], Mapping[int, str]],
        place: Callable[[int], str],
        start_s: float = START_S,
    ) -> dict[int, Connections]:
        """Wait until all of `ranks` are connected.

        `ended`, `place`: as of `Launcher`. Raises RankRefused, with the ranks that are missing.
        """
        missing, deadline = set(ranks), time.monotonic() + start_s
        while missing:
            self._look(missing)
            missing = {rank for rank in missing if not self._is_whole(rank)}
            lost = {rank: why for rank, why in ended().items() if rank in missing}
            if lost:
                raise RankRefused("; ".join(f"rank {n} ({place(n)}) {why}" for n, why in lost.items()))
            if time.monotonic() > deadline and missing:
                names = "; ".join(f"rank {rank} ({place(rank)})" for rank in sorted(missing))
                raise RankRefused(f"these have not started within {start_s:.0f} s: {names}")
        return {rank: _connections(each) for rank, each in self._arrived.items()}

    def _is_whole(self, rank: int) -> bool:
        return rank in self._arrived and len(self._arrived[rank].found) == len(_KINDS)

    def _look(self, wanted: set[int]) -> None:
        """Accept a peer, and read hellos; waits for LOOK_S at most."""
        sockets = [self._listener, *(each.connection for each in self._strangers)]
        ready = select.select(sockets, [], [], LOOK_S)[0]
        now = time.monotonic()
        waiting = []
        for each in self._strangers:
            is_done = each.connection in ready and self._listen(each, wanted)
            if not is_done and now - each.since > HELLO_S:
                each.connection.close()
            elif not is_done:
                waiting.append(each)
        self._strangers = waiting
        if self._listener in ready:
            connection, _ = self._listener.accept()
            self._strangers.append(_Stranger(connection, now))
        for each in self._strangers[:-MAX_STRANGERS]:
            each.connection.close()
        del self._strangers[:-MAX_STRANGERS]

    def _listen(self, stranger: _Stranger, wanted: set[int]) -> bool:
        """Read from a stranger. Returns whether it is decided: it is one of `wanted`, or disconnected."""
        try:
            data = stranger.connection.recv(_HELLO.size - len(stranger.said))
        except OSError:
            data = b""
        stranger.said += data
        if data and len(stranger.said) < _HELLO.size:
            return False
        if data:
            token, rank, kind, pid = _HELLO.unpack(stranger.said)
            arrived = self._arrived.get(rank)
            if (
                hmac.compare_digest(token, self._token)
                and rank in wanted
                and kind < len(_KINDS)
                and (arrived is None or (arrived.pid == pid and kind not in arrived.found))
            ):
                made = self._arrived.setdefault(rank, _Arrived(pid))
                made.found[kind] = _tuned(stranger.connection)
                return True
            log.warning("a peer without the secret dialled the ranks of a model, and was disconnected")
        stranger.connection.close()
        return True


def _connections(arrived: _Arrived) -> Connections:
    life, work, store = (arrived.found[kind] for kind in range(len(_KINDS)))
    host: str = life.getpeername()[0]
    return Connections(life, work, store, host, arrived.pid)
