"""Messages between a replica and its grammar sandbox: length-prefixed frames of msgpack.

They consist of plain typed values, so nothing that is received can run code.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from serve_app.types import Grammar

_LENGTH = struct.Struct("<I")

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSetup:
    """The tokens of the model whose grammars the sandbox compiles."""

    tokenizer_json: str
    vocab_size: int  # of the model
    own_vocab_size: int  # of the tokenizer
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    """Parent -> child: first the setup, then one grammar at a time."""

    setup: SandboxSetup | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    """Child -> parent, one reply to each command; the reply to a correct setup is empty."""

    compiled: str | None = None  # the grammar in llguidance's notation, after its trial
    refused: str | None = None  # the reason of an InvalidField
    unavailable: str | None = None  # why this tokenizer allows no grammars


class Pipe(Generic[In, Out]):
    """One end of the connection, used by one thread at a time."""

    def __init__(self, connection: socket.socket, receives: type[In]) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)

    def send(self, value: Out) -> None:
        """Raises OSError when the other end is gone."""
        body = self._encoder.encode(value)
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
        # The shutdown wakes a reader that waits in another thread; closing alone would not.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
