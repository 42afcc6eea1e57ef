"""What can be wrong with a database: what an operator must put right, and what passes by itself."""

from __future__ import annotations

import errno
import sqlite3
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, InterfaceError

# SQLSTATE classes and codes: connections, resources, an operator's stop, a lock that did not come in time.
_AWAY: Final = ("08", "53", "57P", "57014", "55P03", "25006")
_COLLIDED: Final = ("40",)  # the transaction met another one, and may be tried again
_DISK_FULL: Final = "53100"
_BAD_TEXT: Final = "22021"
# The lowest byte of SQLite's codes: busy, locked, read-only, input or output, corrupt, full, cannot open, no
# database. An operator may put another file in the place of a broken one.
_SQLITE_AWAY: Final = frozenset({5, 6, 8, 10, 11, 13, 14, 26})


class DatabaseProblem(Exception):
    """An operator must act: the URL is wrong, a driver is missing, or the database is of a newer version."""


def is_away(error: Exception) -> bool:
    """Whether the database may answer later, with nothing changed: it is gone, locked, full or broken."""
    if isinstance(error, OSError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_AWAY
    return (
        error.connection_invalidated or isinstance(error, InterfaceError) or _state(error).startswith(_AWAY)
    )


def is_full(error: Exception) -> bool:
    """Whether there is no room left to write: on the disk, or in the database's file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return _state(error) == _DISK_FULL


def has_collided(error: Exception) -> bool:
    """Whether the transaction lost against another one, so that it may be tried again at once."""
    return isinstance(error, DBAPIError) and _state(error).startswith(_COLLIDED)


def is_bad_text(error: Exception) -> bool:
    """Whether a text has the one character that PostgreSQL takes in none: NUL."""
    return isinstance(error, DBAPIError) and _state(error) == _BAD_TEXT


def _state(error: DBAPIError) -> str:
    """The SQLSTATE that PostgreSQL gave."""
    detail: Any = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return str(detail.get("C", "")) if isinstance(detail, dict) else ""
