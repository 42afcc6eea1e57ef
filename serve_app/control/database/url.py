"""Turns a database's URL, as an operator writes it, into an SQLAlchemy engine.

sqlite:////folder/control.db
postgresql://user:password@host:5432/name?sslmode=verify-full
postgresql://user@/name?host=/var/run/postgresql        (a Unix socket)
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from serve_app.control.database.problem import DatabaseProblem

BUSY_S: Final = 2.0  # how long a transaction waits for a lock
ANSWER_S: Final = 10.0  # how long a server may take to answer
PORT: Final = 5432
_DRIVER: Final = "postgresql+pg8000"
_POSTGRES: Final = ("postgresql", "postgres", _DRIVER)
_TLS: Final = ("disable", "require", "verify-full")


def open_engine(url: str) -> Engine:
    """An engine for the database at `url`. Nothing is connected yet.

    Raises DatabaseProblem if the URL is invalid or its driver is not installed.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseProblem(
            "the URL of the database cannot be read; write sqlite:////folder/file.db"
        ) from None
    if parsed.drivername in _POSTGRES:
        return _open_postgres(parsed)
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return _open_sqlite(parsed)
    raise DatabaseProblem(f"the database is {parsed.drivername}; it may be sqlite or postgresql")


def _open_sqlite(url: URL) -> Engine:
    engine = create_engine(url)
    if url.database and url.database != ":memory:":
        file = Path(url.database)
        event.listen(engine, "do_connect", lambda *_: _make_private(file))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _make_private(path: Path) -> None:
    """Make the file and its folder private to their owner, since they hold hashes of keys. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepare_sqlite(connection: Any, record: Any) -> None:
    """Set SQLite up: other readers do not wait, commits survive the process, foreign keys are enforced."""
    connection.isolation_level = None  # the driver begins no transactions of its own: ours cover reads too
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={int(BUSY_S * 1000)}",  # first, since the next one may wait for a lock
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _open_postgres(url: URL) -> Engine:
    query = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    arguments: dict[str, Any] = {"timeout": ANSWER_S, "application_name": "serve-app"}
    host = query.pop("host", "")
    if host.startswith("/"):
        arguments["unix_sock"] = f"{host}/.s.PGSQL.{url.port or PORT}"
        url = url.set(host=None, port=None)
    tls = query.pop("sslmode", "disable" if host else "")
    if tls:
        arguments["ssl_context"] = _tls(tls)
    if query:
        raise DatabaseProblem(f"the URL of the database has an unknown part: {min(query)}")
    try:
        engine = create_engine(
            url.set(drivername=_DRIVER, query={}),
            connect_args=arguments,
            isolation_level="SERIALIZABLE",
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,  # so that no transaction fails after a restart of the server
        )
    except (ImportError, NoSuchModuleError):
        raise DatabaseProblem(
            "the database is PostgreSQL, and its driver is not installed: pip install 'serve-app[postgres]'"
        ) from None
    event.listen(engine, "connect", _prepare_postgres)
    return engine


def _tls(mode: str) -> ssl.SSLContext | None:
    """Interpret `sslmode` as libpq does: encrypted, or encrypted with a verified server."""
    if mode not in _TLS:
        raise DatabaseProblem(f"sslmode of the database may be {', '.join(_TLS)}, not {mode}")
    if mode == "disable":
        return None
    context = ssl.create_default_context()
    if mode == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _prepare_postgres(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = {int(BUSY_S * 1000)}")
    cursor.execute("COMMIT")
    cursor.close()
