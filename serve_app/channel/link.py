"""One end of a connection: frames out, frames in, and a watch over the peer at the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from serve_app.channel.frames import LENGTH_BYTES, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES

BEAT_S: Final = 1.0  # a sign of life this often
SILENCE_S: Final = 8.0  # a peer silent for longer is gone: a half-open connection, a stopped process
# A peer with more unsent bytes than this is dropped. One step may hold the logits of a few requests.
MAX_BACKLOG_BYTES: Final = 3 * MAX_MESSAGE_BYTES


class Link(asyncio.Protocol):
    """Cuts a byte stream into frames and watches over its peer.

    `on_frame(payload)` raises if the frame is malformed; the peer is then disconnected. `on_close(reason)` is
    called exactly once, after the last frame, whichever end closed the connection. `beat()` returns the
    payload of the next heartbeat, or None to send no heartbeat.
    """

    def __init__(
        self,
        *,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[str], None],
        beat: Callable[[], bytes | None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.closed = False
        self.peer_closed = False  # whether the peer, or the end of its process, closed the connection
        self._on_frame = on_frame
        self._on_close = on_close
        self._beat = beat
        self._max_backlog_bytes = max_backlog_bytes
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the peer closed the connection"

    # --- asyncio.Protocol ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # by behaviour: uvloop has its own class
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._watch_at = self._heard + self._beat_s
        self._timer = self._loop.call_at(self._watch_at, self._watch)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        buffer = self._buffer
        buffer += data
        start = 0
        while not self.closed and len(buffer) - start >= LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + LENGTH_BYTES], "big")
            if length > self.max_frame_bytes:
                self.drop("a frame is too large")
                return
            end = start + LENGTH_BYTES + length
            if len(buffer) < end:
                break
            payload = bytes(buffer[start + LENGTH_BYTES : end])
            start = end
            try:
                self._on_frame(payload)
            except Exception as error:
                self.drop(f"a frame is malformed ({type(error).__name__})")
                return
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer_closed = not self.closed
        self._close(self._reason if exc is None else f"the connection broke ({type(exc).__name__})")

    # --- frames ------------------------------------------------------------------------

    def send(self, payload: bytes) -> None:
        """Queue a frame. Never blocks: a peer that leaves too much unread is disconnected instead."""
        if self.closed or self._transport is None:
            return
        if self._transport.get_write_buffer_size() > self._max_backlog_bytes:
            self.drop("the peer does not read")
            return
        self._transport.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)

    def drop(self, reason: str) -> None:
        """Break the connection at once. Unsent frames are lost."""
        if self._transport is not None:
            self._transport.abort()
        self._close(reason)

    def close(self) -> None:
        """End the connection once all queued frames are sent."""
        self._reason = "closed"
        if self._transport is not None:
            self._transport.close()

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_close(reason)

    def _watch(self) -> None:
        now = self._loop.time()
        if now - self._watch_at > self._beat_s:
            # This process was held up, so the peer's frames may still wait to be read.
            self._heard = now
        if now - self._heard > self._silence_s:
            self.drop("the peer is silent")
            return
        payload = self._beat()
        if payload is not None:
            self.send(payload)
        if not self.closed:
            self._watch_at = now + self._beat_s
            self._timer = self._loop.call_at(self._watch_at, self._watch)
