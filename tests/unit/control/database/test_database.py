"""Transactions of the control plane: whole or not at all, tried again, and refused in words."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from serve_app.control.database.database import Database
from serve_app.control.database.problem import DatabaseProblem
from serve_app.control.database.url import open_engine
from serve_app.control.ledger.tables import Spending
from serve_app.errors import InvalidField, Unavailable
from tests.support.databases import open_database
from tests.support.small_disk import fill, free, small_disk


def spend(key_id, cost=1.0):
    return lambda session: session.add(Spending(month="2026-03", key_id=key_id, currency="USD", cost=cost))


def count(session):
    return session.scalar(select(func.count()).select_from(Spending))


async def test_what_is_committed_is_there_and_what_raised_is_not(each_database):
    await each_database.run(spend("alice"))

    def fails(session):
        spend("bob")(session)
        session.flush()
        raise KeyError("no")

    with pytest.raises(KeyError):
        await each_database.run(fails)
    assert await each_database.run(count) == 1


async def test_a_constraint_that_does_not_hold_is_the_callers_error(each_database):
    await each_database.run(spend("alice"))
    with pytest.raises(IntegrityError):
        await each_database.run(spend("alice"))
    assert await each_database.run(count) == 1


async def test_a_statement_that_is_wrong_is_not_taken_for_a_database_that_is_away(each_database):
    with pytest.raises(DBAPIError):
        await each_database.run(lambda session: session.execute(text("SELECT nothing FROM nowhere")))


async def test_a_text_that_postgresql_cannot_hold_is_the_callers_error(postgres_url):
    database = open_database(postgres_url)
    with pytest.raises(InvalidField, match="NUL"):
        await database.run(spend("a\0b"))
    assert await database.run(count) == 0
    database.close()


async def test_two_processes_lose_no_update(each_url):
    databases = [open_database(each_url) for _ in range(2)]
    await databases[0].run(spend("alice", 0.0))

    def add_one(session):
        row = session.scalars(select(Spending)).one()
        row.cost += 1.0

    async def add_many(database):
        for _ in range(20):
            while True:
                try:
                    await database.run(add_one)
                    break
                except Unavailable:
                    continue

    await asyncio.gather(*map(add_many, databases))
    assert await databases[1].run(lambda session: session.scalars(select(Spending.cost)).one()) == 40.0
    for database in databases:
        database.close()


async def test_a_locked_file_is_unavailable_and_then_available(sqlite_url, monkeypatch):
    monkeypatch.setattr("serve_app.control.database.url.BUSY_S", 0.05)
    database = Database(sqlite_url)
    await database.run(spend("alice"))
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable) as refused:
        await database.run(spend("bob"))
    assert refused.value.retry_after_s
    other.execute("ROLLBACK")
    other.close()
    await database.run(spend("bob"))
    assert await database.run(count) == 2
    database.close()


async def test_a_server_that_stops_is_unavailable_and_then_available(postgres_server, postgres_url):
    database = open_database(postgres_url)
    await database.run(spend("alice"))
    postgres_server.kill()
    with pytest.raises(Unavailable):
        await database.run(spend("bob"))
    postgres_server.start()
    await database.run(spend("bob"))
    # One that was stopped and started between two transactions costs nobody a failure.
    postgres_server.stop()
    postgres_server.start()
    assert await database.run(count) == 2
    database.close()


async def test_a_server_that_hangs_is_unavailable_and_then_available(
    postgres_server, postgres_url, monkeypatch
):
    monkeypatch.setattr("serve_app.control.database.url.ANSWER_S", 0.5)
    database = open_database(postgres_url)
    await database.run(spend("alice"))
    postgres_server.freeze()
    try:
        with pytest.raises(Unavailable):
            await database.run(count)
    finally:
        postgres_server.thaw()
    assert await database.run(count) == 1
    database.close()


async def test_a_database_that_is_away_at_the_start_may_come_later(postgres_server, postgres_url):
    postgres_server.stop()
    database = Database(postgres_url)
    with pytest.raises(Unavailable):
        await database.run(count)
    postgres_server.start()
    assert await database.run(count) == 0
    database.close()


def test_the_file_and_its_folder_are_its_owners_alone(tmp_path):
    path = tmp_path / "state" / "control.db"
    database = Database(f"sqlite:///{path}")
    asyncio.run(database.run(spend("alice")))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o077 for each in path.parent.iterdir()} == {0}
    database.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("control.db", "cannot be read"),
        ("mysql://root@localhost/x", "may be sqlite or postgresql"),
        ("postgresql://me@host/x?sslmode=maybe", "sslmode of the database may be"),
        ("postgresql://me@host/x?colour=red", "unknown part: colour"),
    ],
)
def test_a_url_that_can_never_be_opened_is_said_at_once(url, words):
    with pytest.raises(DatabaseProblem, match=words):
        open_engine(url)


def test_a_url_is_said_without_its_password():
    with pytest.raises(DatabaseProblem) as refused:
        open_engine("postgresql://me:secret@host/x?sslmode=maybe")
    assert "secret" not in str(refused.value)


def _break_file(path: Path) -> None:
    path.write_bytes(b"no database" * 1_000)


def _break_folder(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_break_file, "file is not a database; restore a backup, or move the file away"),
        (Path.mkdir, "Is a directory; see that the file and its folder are there and can be written"),
        (_break_folder, "; see that the file and its folder are there and can be written"),
    ],
)
def test_a_file_that_is_no_database_is_named_until_it_is_out_of_the_way(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "state" / "control.db"
    path.parent.mkdir()
    spoil(path)
    database = Database(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            asyncio.run(database.run(spend("alice")))
        assert str(path) not in refused.value.message  # a client's answer
        assert database.problem is not None
        assert f"{path} does not answer" in database.problem
        assert reason in database.problem
    broken = path.parent if path.parent.is_file() else path
    broken.rename(tmp_path / "aside")
    asyncio.run(database.run(spend("alice")))
    assert database.problem is None
    database.close()


async def test_a_file_that_breaks_while_it_is_used_is_mended_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    database = Database(f"sqlite:///{path}")
    await database.run(lambda session: [spend(f"key-{n}" * 100)(session) for n in range(400)])
    database._engine.dispose()  # what is in its log goes into the file
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * (path.stat().st_size - file.tell()))
    with pytest.raises(Unavailable):
        await database.run(count)
    assert database.problem is not None
    assert "malformed; restore a backup, or move the file away" in database.problem
    path.rename(tmp_path / "aside")
    assert await database.run(count) == 0
    database.close()


async def test_a_full_disk_is_called_that(tmp_path):
    with small_disk(tmp_path / "disk", 2**20) as disk:
        database = open_database(f"sqlite:///{disk / 'control.db'}")
        await database.run(spend("alice"))
        fill(disk)
        with pytest.raises(Unavailable, match="disk of the database is full"):
            await database.run(lambda session: [spend(f"key-{n}" * 100)(session) for n in range(1_000)])
        free(disk)
        await database.run(spend("bob"))
        assert await database.run(count) == 2
        database.close()
