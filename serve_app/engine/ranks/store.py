"""The keys by which collectives of ranks find each other: a store in rank 0, and a client in each other rank.

Torch's own server takes keys from any peer that reaches its port. This one serves only connections that
`meeting` has checked.
"""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec
import torch.distributed

from serve_app.engine.pipe import Pipe

dist: Final[Any] = torch.distributed  # its declarations leave out some of what it has
JOIN: Final = timedelta(seconds=120)  # for a key that another rank sets


class Ask(msgspec.Struct, array_like=True):
    """A method of a store, with its arguments."""

    method: str
    keys: list[str]
    value: bytes = b""
    number: int = 0


class Said(msgspec.Struct, array_like=True):
    """What the method has returned, or why it failed."""

    value: bytes = b""
    number: int = 0
    failed: str | None = None


Clerk: TypeAlias = Pipe[Ask, Said]


def new_store() -> Any:
    """The store itself, for rank 0."""
    store = dist.HashStore()
    store.set_timeout(JOIN)
    return store


def serve_store(store: Any, connection: socket.socket) -> None:
    """Answer a rank, in a thread, until its connection closes."""
    pipe: Clerk = Pipe(connection, Ask)

    def run() -> None:
        while (ask := pipe.receive()) is not None:
            try:
                said = _answer(store, ask)
            except RuntimeError as error:  # a key that did not come
                said = Said(failed=str(error))
            try:
                pipe.send(said)
            except OSError:
                return

    threading.Thread(target=run, name="store", daemon=True).start()


def _answer(store: Any, ask: Ask) -> Said:
    match ask.method:
        case "set":
            store.set(ask.keys[0], ask.value)
        case "get":
            return Said(value=store.get(ask.keys[0]))
        case "wait":
            store.wait(ask.keys, JOIN)
        case "check":
            return Said(number=int(store.check(ask.keys)))
        case "add":
            return Said(number=store.add(ask.keys[0], ask.number))
        case _:
            return Said(failed=f"the store has no {ask.method}")
    return Said()


class RemoteStore(dist.Store):  # type: ignore[misc]
    """The store of rank 0, in another rank. For any thread."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._pipe: Pipe[Said, Ask] = Pipe(connection, Said)
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", [key], value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._ask("get", [key]).value

    def wait(self, keys: list[str], timeout: timedelta = JOIN) -> None:
        self._ask("wait", keys)

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys).number)

    def add(self, key: str, value: int) -> int:
        return self._ask("add", [key], number=value).number

    def clone(self) -> RemoteStore:
        return self

    def _ask(self, method: str, keys: list[str], value: bytes = b"", number: int = 0) -> Said:
        with self._lock:
            self._pipe.send(Ask(method, keys, value, number))
            said = self._pipe.receive()
        if said is None or said.failed is not None:
            raise RuntimeError(f"{method} {keys}: {'rank 0 is gone' if said is None else said.failed}")
        return said
