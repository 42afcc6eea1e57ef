"""Transactions, one at a time, in a thread of their own: the event loop never waits for the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from serve_app.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 2.0  # told to clients
BUSY_S: Final = 5.0  # for which SQLite waits for another writer


class Database:
    """One database, opened by the control plane alone."""

    def __init__(self, url: str) -> None:
        """`url`: as SQLAlchemy has it: sqlite:////folder/file.db, postgresql+pg8000://user:password@host/name."""
        self._engine = _engine(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")

    async def run(self, work: Callable[[Session], T]) -> T:
        """What `work` returns, once its transaction is committed. Whatever it raises undoes all.

        Raises Unavailable where the database is away or locked: then nothing was changed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    def close(self) -> None:
        self._thread.shutdown()
        self._engine.dispose()

    def _work(self, work: Callable[[Session], T]) -> T:
        try:
            with Session(self._engine) as session, session.begin():
                return work(session)
        except (OperationalError, DBAPIError) as error:
            if not (isinstance(error, OperationalError) or error.connection_invalidated):
                raise
            logger.warning("the database does not answer: %s", type(error.orig).__name__)
            raise Unavailable("the database does not answer; try again", retry_after_s=RETRY_S) from error


def _engine(url: str) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: Any) -> None:
    """Readers do not wait for writers, a commit survives the process, and foreign keys hold."""
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_S * 1000)}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
