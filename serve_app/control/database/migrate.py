"""Brings the tables of a database to what this version expects, by the steps in `migrations/versions`.

Does not depend on any particular table. If two processes start at once, each step still runs only once: the
first process holds the lock until its transaction ends, and the second finds nothing left to do.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, MetaData, text

from serve_app.control.database.problem import DatabaseProblem

FOLDER: Final = Path(__file__).with_name("migrations")
LOCK: Final = 0x73657276652D6170  # PostgreSQL's lock id: an arbitrary number, the same in every version
LOCK_S: Final = 60.0  # how long to wait while another process migrates
LOOK_S: Final = 0.1


def upgrade(engine: Engine) -> None:
    """Create or change the tables: all of them, or none if anything fails.

    Raises DatabaseProblem if a newer version made them, and TimeoutError if another process holds the lock
    too long.
    """
    if engine.dialect.name == "postgresql":
        # What is read under the lock must be as of the lock, not as of the transaction's start.
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as connection:
        _lock(connection)
        try:
            command.upgrade(config(connection), "head")
        except CommandError as error:
            if "Can't locate revision" not in str(error):
                raise
            raise DatabaseProblem(
                "a newer version of serve-app made the database; install that version, or restore a backup"
            ) from error


def config(connection: Connection, metadata: MetaData | None = None) -> Config:
    """Alembic's configuration: our steps, this connection, and the wanted tables."""
    settings = Config(attributes={"connection": connection, "metadata": metadata})
    settings.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return settings


def _lock(connection: Connection) -> None:
    """Admit one process at a time, until the transaction ends; SQLite's own transactions do this already."""
    if connection.dialect.name != "postgresql":
        return
    give_up = time.monotonic() + LOCK_S
    while not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": LOCK}):
        if time.monotonic() > give_up:
            raise TimeoutError("another process has been changing the tables for too long")
        time.sleep(LOOK_S)
