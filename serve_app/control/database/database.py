"""Transactions, one at a time, in a thread of their own: the event loop never waits for the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from serve_app.control.database.migrate import upgrade
from serve_app.control.database.problem import (
    DatabaseProblem,
    has_collided,
    is_away,
    is_bad_text,
    is_full,
    remedy,
)
from serve_app.control.database.url import open_engine
from serve_app.errors import InvalidField, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 2.0  # `Retry-After` for clients
TRIES: Final = 5  # tries for a transaction that collides with others
FULL: Final = "the disk of the database is full: nothing can be changed before there is room"
PAUSE_S: Final = 0.05  # pause before the second try; each later pause is longer


class Database:
    """One database, which only the control plane opens."""

    def __init__(self, url: str, *, prepare: Callable[[Engine], None] = upgrade) -> None:
        """`url`: see `control.database.url`. `prepare` creates the tables before the first transaction.

        An unreachable database may come back, so each `run` tries again. Raises DatabaseProblem for a URL
        that can never be opened.
        """
        self.problem: str | None = None  # why the latest transaction failed; None if it succeeded
        self._engine = open_engine(url)
        self._prepare = prepare
        self._is_prepared = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")

    @property
    def dialect(self) -> str:
        """ "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    @property
    def _place(self) -> str:
        """The database's file, or its server and name. Without user and password."""
        url = self._engine.url
        return f"{url.host}/{url.database}" if url.host else str(url.database)

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction; returns its result once committed. An exception rolls back.

        Transactions are serialisable. `work` may be called several times, each time in a new transaction, so
        it must have no other effects.

        Raises Unavailable if the database is unreachable or locked; nothing was changed then, unless the
        connection broke during the commit. Raises InvalidField for a text that PostgreSQL cannot hold, and
        DatabaseProblem if a newer version made the tables.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    def close(self) -> None:
        """Finish the running transaction, and close the database."""
        self._thread.submit(self._engine.dispose)
        self._thread.shutdown()

    def _work(self, work: Callable[[Session], T]) -> T:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                done = self._try(work)
                self.problem = None
                return done
            except DatabaseProblem as error:
                self.problem = f"the database {self._place}: {error}"
                raise
            except (DBAPIError, OSError) as error:
                if has_collided(error) and attempt < TRIES - 1:
                    continue
                if is_bad_text(error):  # from a field that is not checked; SQLite accepts such text
                    raise InvalidField(None, "texts must not have the character NUL") from error
                if not (is_away(error) or has_collided(error)):
                    raise
                self.problem = f"the database {self._place} does not answer: {_reason(error)}"
                if (advice := remedy(error)) is not None:
                    self.problem += f"; {advice}"
                    self._is_prepared = False  # the file may be replaced by another one
                logger.warning("%s", self.problem)
                reason = FULL if is_full(error) else "the database does not answer; try again"
                raise Unavailable(reason, retry_after_s=RETRY_S) from error
        raise AssertionError("the last try returns or raises")

    def _try(self, work: Callable[[Session], T]) -> T:
        if not self._is_prepared:
            self._prepare(self._engine)
            self._is_prepared = True
        with Session(self._engine) as session, session.begin():
            return work(session)


def _reason(error: Exception) -> str:
    """The reason to log, without the SQL statement, whose values come from a client."""
    if isinstance(error, DBAPIError):
        return str(error.orig)
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
