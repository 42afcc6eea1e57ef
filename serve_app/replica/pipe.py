"""Length-prefixed msgpack frames between a replica and its engine's child process.

Plain typed values only; nothing that is received can run code.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from serve_app.types import Adapter, EngineOutput, EngineRequest, EngineStats, ErrorInfo

_LENGTH = struct.Struct("<I")

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Parent -> child: exactly one of the fields says what to do."""

    add: EngineRequest | None = None
    abort: str | None = None
    finish: tuple[str, int, int] | None = None
    load_adapter: tuple[str, Adapter] | None = None  # under a key of the parent's
    drop_adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the parent must know of the loaded engine."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Child -> parent."""

    progress: str | None = None
    ready: EngineFacts | None = None
    failed: str | None = None  # the message of a ModelLoadError
    outputs: tuple[EngineOutput, ...] = ()
    stats: EngineStats | None = None
    refused: tuple[str, ErrorInfo] | None = None  # a request that the engine would not take
    adapter: tuple[str, str | ErrorInfo] | None = (
        None  # a key, and its name in the engine or why there is none
    )


class Pipe(Generic[In, Out]):
    """One end of the connection. `send` is thread-safe, `receive` belongs to one thread."""

    def __init__(self, connection: socket.socket, receives: type[In]) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._lock = threading.Lock()

    def send(self, value: Out) -> None:
        """Raises OSError when the other end is gone."""
        body = self._encoder.encode(value)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

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
        # Shut down first: it wakes a reader that waits in another thread.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
