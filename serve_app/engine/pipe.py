"""One end of a connection between a process and its child: length-prefixed frames of msgpack.

They consist of plain typed values, so nothing that is received can run code.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

_LENGTH = struct.Struct("<I")

In = TypeVar("In")
Out = TypeVar("Out")


def frame(value: object) -> bytes:
    """The bytes of one value."""
    body = msgspec.msgpack.encode(value)
    return _LENGTH.pack(len(body)) + body


class Pipe(Generic[In, Out]):
    """One end of the connection, used by one thread at a time."""

    def __init__(self, connection: socket.socket, receives: Any) -> None:
        """`receives`: the type In, or a union of types."""
        self.socket = connection
        self._reader = connection.makefile("rb")
        self._decoder = msgspec.msgpack.Decoder(receives)

    def send(self, value: Out) -> None:
        """Raises OSError when the other end is gone."""
        self.send_frame(frame(value))

    def send_frame(self, data: bytes) -> None:
        """As `send`, for what `frame` has made."""
        self.socket.sendall(data)

    def receive(self) -> In | None:
        """The next value; None when the other end is gone."""
        try:
            head = self._reader.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            body = self._reader.read(length)
        except OSError:
            return None
        return self._decoder.decode(body) if len(body) == length else None

    def close(self) -> None:
        # The shutdown wakes a reader that waits in another thread; closing alone would not.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
