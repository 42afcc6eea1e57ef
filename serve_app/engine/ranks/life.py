"""Signs of life between rank 0 and a follower: who is gone, who hangs, and which command has failed.

They have a connection of their own and threads of their own, because a rank that computes, or waits for
another rank, reads nothing else. Depends on sockets alone.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

BEAT_S: Final = 1.0
SILENT_S: Final = 6.0  # without a beat a follower counts as lost; a client's limit is 10 s
STARTING_S: Final = 120.0  # the same while it loads, which may keep its threads from running
DIFFERS_S: Final = 2.0  # for all ranks to fail by a command, if one does

_RECORD: Final = struct.Struct("<Q")  # 0: a beat; else the number of a command that has failed


class FollowerLife:
    """A follower's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="life", daemon=True).start()

    def failed(self, number: int) -> None:
        """Tell rank 0 that the command with this number, from 1, has failed."""
        with suppress(OSError):
            self._write(number)

    def _run(self) -> None:
        """Send beats; end this process when rank 0 has ended, whatever its other threads wait for."""
        while True:
            try:
                self._write(0)
                if select.select([self._socket], [], [], BEAT_S)[0] and not self._socket.recv(1):
                    break
            except OSError:
                break
        os._exit(1)

    def _write(self, number: int) -> None:
        with self._lock:
            self._socket.sendall(_RECORD.pack(number))


class Watch:
    """Rank 0's end: a thread that looks after all followers."""

    def __init__(self, connections: Mapping[int, socket.socket], on_lost: Callable[[str], None]) -> None:
        """`connections` by rank. `on_lost` is called once, in the watch's thread, with the reason."""
        self._connections, self._on_lost = dict(connections), on_lost
        self._limit_s, self._since = STARTING_S, time.monotonic()
        self._changed = threading.Condition()  # guards those below
        self._failed: dict[int, set[int]] = {rank: set() for rank in connections}  # commands, by rank
        self._failed_at = 0.0  # when a rank said so last, or rank 0 came to a command
        self._reached = 0  # the command that rank 0 runs
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def all_ready(self) -> None:
        """From now on a follower must show a beat every SILENT_S."""
        self._since, self._limit_s = time.monotonic(), SILENT_S

    def reached(self, number: int) -> None:
        """Rank 0 begins to run this command. Followers may be some commands ahead."""
        with self._changed:
            self._reached = number
            if any(number in each for each in self._failed.values()):
                self._failed_at = time.monotonic()

    def all_failed(self, number: int) -> bool:
        """Whether all followers fail by this command, too; waits for them."""

        def same() -> bool:
            return all(number in each for each in self._failed.values())

        with self._changed:
            self._changed.wait_for(lambda: self._ended or same(), DIFFERS_S)
            is_same = not self._ended and same()
            for each in self._failed.values():
                each.discard(number)
            return is_same

    def end(self) -> None:
        """Watch no more; the followers may end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        now = time.monotonic()
        heard, parts = dict.fromkeys(self._connections, now), dict.fromkeys(self._connections, b"")
        ranks = {each.fileno(): rank for rank, each in self._connections.items()}
        reason = None
        while not self._ended and reason is None:
            try:
                ready = select.select(list(ranks), [], [], BEAT_S / 2)[0]
            except (OSError, ValueError):  # closed, as it has ended
                break
            now = time.monotonic()
            for place in ready:
                rank = ranks[place]
                try:
                    data = self._connections[rank].recv(4096)
                except OSError:
                    data = b""
                if not data:
                    reason = f"rank {rank} is gone"
                heard[rank] = now
                parts[rank] = self._take(rank, parts[rank] + data, now)
            late = [rank for rank, at in heard.items() if now - max(at, self._since) > self._limit_s]
            if late and not ready:
                reason = reason or f"rank {late[0]} has shown no sign of life for {self._limit_s:.0f} s"
            with self._changed:
                alone = any(each and min(each) <= self._reached for each in self._failed.values())
                if alone and now - self._failed_at > 2 * DIFFERS_S:
                    reason = reason or "the ranks no longer do the same: a command failed in some of them"
        with self._changed:
            was_ended, self._ended = self._ended, True
            self._changed.notify_all()
        if reason is not None and not was_ended:
            self._on_lost(reason)

    def _take(self, rank: int, data: bytes, now: float) -> bytes:
        """Note the records in `data`; returns what is left of it."""
        whole = len(data) - len(data) % _RECORD.size
        for (number,) in _RECORD.iter_unpack(data[:whole]):
            if number:
                with self._changed:
                    self._failed[rank].add(number)
                    self._failed_at = now
                    self._changed.notify_all()
        return data[whole:]
