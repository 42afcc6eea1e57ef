"""Problems with a database: those that an operator must solve, and those that pass by themselves."""

from __future__ import annotations

import errno
import sqlite3
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, InterfaceError

# SQLSTATE classes and codes: connections, resources, a shutdown by an operator, a lock timeout.
_AWAY: Final = ("08", "53", "57P", "57014", "55P03", "25006")
_COLLIDED: Final = ("40",)  # the transaction conflicted with another one, and may be retried
_DISK_FULL: Final = "53100"
_BAD_TEXT: Final = "22021"
# The lowest byte of SQLite's codes: busy, locked, read-only, input or output, corrupt, full, cannot open, no
# database. An operator may put another file in the place of a broken one.
_SQLITE_AWAY: Final = frozenset({5, 6, 8, 10, 11, 13, 14, 26})

_WRITABLE: Final = "see that the file and its folder are there and can be written"
_ROOM: Final = "make room on its disk"
_ANOTHER: Final = "restore a backup, or move the file away: then an empty database is made"
# What an operator can do, by the same codes.
_REMEDIES: Final = {8: _WRITABLE, 11: _ANOTHER, 13: _ROOM, 14: _WRITABLE, 26: _ANOTHER}


class DatabaseProblem(Exception):
    """A problem that an operator must solve: a wrong URL, a missing driver, or tables of a newer version."""


def is_away(error: Exception) -> bool:
    """Whether the database may recover without a change of settings: it is gone, locked, full or broken."""
    if isinstance(error, OSError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if (code := _sqlite_code(error)) is not None:
        return code in _SQLITE_AWAY
    return (
        error.connection_invalidated or isinstance(error, InterfaceError) or _state(error).startswith(_AWAY)
    )


def remedy(error: Exception) -> str | None:
    """What an operator can do; None if there is nothing to do but wait or check the database's server."""
    if is_full(error):
        return _ROOM
    if isinstance(error, OSError) and error.filename is not None:
        return _WRITABLE
    return _REMEDIES.get(_sqlite_code(error) or 0)


def is_full(error: Exception) -> bool:
    """Whether there is no room left to write, on the disk or in the database's file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, DBAPIError):
        return False
    if (code := _sqlite_code(error)) is not None:
        return code == sqlite3.SQLITE_FULL
    return _state(error) == _DISK_FULL


def has_collided(error: Exception) -> bool:
    """Whether the transaction collided with another one, so that it may be tried again at once."""
    return isinstance(error, DBAPIError) and _state(error).startswith(_COLLIDED)


def is_bad_text(error: Exception) -> bool:
    """Whether a text contains NUL, which PostgreSQL refuses."""
    return isinstance(error, DBAPIError) and _state(error) == _BAD_TEXT


def _sqlite_code(error: Exception) -> int | None:
    """SQLite's primary error code; None if the error is not from SQLite."""
    if not isinstance(error, DBAPIError) or not isinstance(error.orig, sqlite3.Error):
        return None
    return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF


def _state(error: DBAPIError) -> str:
    """The SQLSTATE from PostgreSQL."""
    detail: Any = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return str(detail.get("C", "")) if isinstance(detail, dict) else ""
