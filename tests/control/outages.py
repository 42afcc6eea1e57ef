"""A database that is out of reach for a while: locked, stopped or frozen."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

from tests.support.databases import PostgresServer

Outage: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]

LOCK_S: Final = 60.0  # for which the lock itself is waited for


def locked(file: Path) -> Outage:
    """Somebody else has begun a transaction that excludes all others."""

    @asynccontextmanager
    async def outage() -> AsyncIterator[None]:
        connection = await asyncio.to_thread(_lock, file)
        try:
            yield
        finally:
            connection.rollback()
            connection.close()

    return outage


def stopped(server: PostgresServer) -> Outage:
    """The server is gone: connections are cut, and new ones refused."""
    return _between(server.stop, server.start)


def frozen(server: PostgresServer) -> Outage:
    """The server is there and says nothing, on old connections and new ones."""
    return _between(server.freeze, server.thaw)


def _between(begin: Callable[[], None], end: Callable[[], None]) -> Outage:
    @asynccontextmanager
    async def outage() -> AsyncIterator[None]:
        await asyncio.to_thread(begin)
        try:
            yield
        finally:
            await asyncio.to_thread(end)

    return outage


def _lock(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=LOCK_S, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection
