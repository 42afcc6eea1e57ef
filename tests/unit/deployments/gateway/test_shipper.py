"""Usage reaches the ledger once, whatever was away meanwhile (fault F8), and serving never notices."""

import asyncio
import os
import sqlite3
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from serve_app.accounts.journal import Journal
from serve_app.control.database.database import Database
from serve_app.deployments.gateway.control import shipper as module
from serve_app.deployments.gateway.control.shipper import Shipper
from serve_app.errors import Unavailable
from tests.support.gateway import gateway
from tests.support.ledger import LedgerPlane, read_rows
from tests.unit.accounts.test_journal import CLOSED, OPEN, Gateway

FAST = 0.01
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 0.05)


@asynccontextmanager
async def shipping(folder, plane, keep_days=30):
    shipper = Shipper(folder, plane, keep_days=keep_days, every_s=FAST)
    shipper.start()
    try:
        yield shipper
    finally:
        await shipper.close()


async def until_shipped(plane, ids):
    """The rows, once there is one for each of `ids`."""
    async with asyncio.timeout(WAIT_S):
        while set(rows := await plane.rows()) != set(ids):
            await asyncio.sleep(FAST)
    return rows


def some(id, like=CLOSED, **fields):
    return replace(like, id=id, **fields)


async def test_what_ends_is_in_the_ledger_as_it_ended(database, tmp_path):
    plane, journal = LedgerPlane(database), Journal(tmp_path / "usage")
    async with shipping(tmp_path / "usage", plane):
        journal.opened(some("a", OPEN))
        more = {"user": "ada", "groups": ("sea", "staff"), "shadow": True, "failed_over": ("new", "old")}
        journal.closed(some("a", **more))
        rows = await until_shipped(plane, ["a"])
    assert rows["a"] == some("a", **more)
    journal.close()


@pytest.mark.parametrize(
    "failure", [Unavailable("away", retry_after_s=1.0), ConnectionResetError("died")], ids=str
)
async def test_what_ended_while_nobody_took_it_arrives_later(database, tmp_path, failure):
    plane, journal = LedgerPlane(database), Journal(tmp_path / "usage")
    plane.failure = failure
    async with shipping(tmp_path / "usage", plane) as shipper:
        for id in "abc":
            journal.closed(some(id))
        while len(plane.commands) < 3 or not shipper.behind:
            await asyncio.sleep(FAST)
        assert await plane.rows() == {}
        assert shipper.behind == sum(path.stat().st_size for path in (tmp_path / "usage").glob("*.jsonl"))
        plane.failure = None
        await until_shipped(plane, "abc")
        async with asyncio.timeout(WAIT_S):
            while shipper.behind:
                await asyncio.sleep(FAST)
    journal.close()


async def test_replies_that_are_lost_make_no_second_row_and_no_second_cost(database, tmp_path):
    plane, journal = LedgerPlane(database), Journal(tmp_path / "usage")
    plane.loses_replies = True
    async with shipping(tmp_path / "usage", plane):
        for id in "abc":
            journal.closed(some(id))
        while len(plane.commands) < 4:
            await asyncio.sleep(FAST)
        plane.loses_replies = False
        rows = await until_shipped(plane, "abc")
    assert {row.cost for row in rows.values()} == {CLOSED.cost}
    journal.close()


async def test_another_gateway_takes_over_when_the_one_that_ships_goes(database, tmp_path):
    plane, folder = LedgerPlane(database), tmp_path / "usage"
    journal = Journal(folder)
    first, second = (Shipper(folder, plane, keep_days=30, every_s=FAST) for _ in range(2))
    first.start()
    journal.closed(some("a"))
    await until_shipped(plane, "a")
    second.start()
    await first.close()
    journal.closed(some("b"))
    await until_shipped(plane, "ab")
    await second.close()
    journal.close()


async def test_a_gateway_that_is_killed_leaves_what_its_streams_had_delivered(database, tmp_path):
    plane, folder = LedgerPlane(database), tmp_path / "usage"
    killed = await asyncio.to_thread(Gateway, folder)
    for line in (
        "journal.opened(record('a')); journal.closed(record('a', CLOSED))",
        "journal.opened(record('b'))",
        "journal.progressed(replace(record('b'), completion_tokens=8, prompt_tokens=12))",
        "journal.opened(record('c'))",
    ):
        await asyncio.to_thread(killed.do, line)
    async with shipping(folder, plane):
        await until_shipped(plane, "a")
        killed.kill()
        rows = await until_shipped(plane, "abc")
        assert {id: (row.outcome, row.completion_tokens) for id, row in rows.items()} == {
            "a": ("finished", 30),
            "b": ("lost", 8),
            "c": ("lost", 0),
        }
        # A replica that lived tells more, by another gateway.
        journal = Journal(folder)
        journal.settled(some("b", completion_tokens=10), "b-0")
        async with asyncio.timeout(WAIT_S):
            while (await plane.rows())["b"].completion_tokens != 10:
                await asyncio.sleep(FAST)
        journal.close()


async def serve_while(tmp_path, database, away, back, requests=10):
    """Rows of `database` after requests before, while and after it was away; all are answered."""
    plane, folder = LedgerPlane(database), tmp_path / "usage"
    journal = Journal(folder)
    statuses = []
    async with gateway(journal=journal) as running, shipping(folder, plane):

        async def ask():
            for number in range(requests):
                statuses.append((await running.chat(stream=number % 2 == 0)).status_code)

        await ask()
        await away()
        await ask()
        with pytest.raises(Unavailable):
            await plane.rows()
        assert len(list(folder.glob("usage-*.jsonl"))) == 1
        await ask()
        await back()
        await ask()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    rows = await read_rows(database)
                except Unavailable:
                    continue
                if len(rows) == 4 * requests:
                    break
                await asyncio.sleep(FAST)
    journal.close()
    assert statuses == [200] * 4 * requests
    assert {row.outcome for row in rows.values()} == {"finished"}
    assert len({row.completion_tokens for row in rows.values()}) == 1


async def test_a_locked_database_stops_no_request_and_loses_none(tmp_path, sqlite_url, monkeypatch):
    monkeypatch.setattr("serve_app.control.database.url.BUSY_S", 0.05)
    database = Database(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)

    async def lock():
        other.execute("BEGIN EXCLUSIVE")

    async def unlock():
        other.execute("ROLLBACK")

    await database.run(lambda session: None)
    await serve_while(tmp_path, database, lock, unlock)
    other.close()
    database.close()


async def test_a_server_that_is_stopped_stops_no_request_and_loses_none(
    tmp_path, postgres_server, postgres_url
):
    database = Database(postgres_url)
    await serve_while(
        tmp_path,
        database,
        lambda: asyncio.to_thread(postgres_server.kill),
        lambda: asyncio.to_thread(postgres_server.start),
    )
    database.close()


async def test_old_files_that_arrived_are_removed(database, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SWEEP_S", 0.0)
    folder, plane = tmp_path / "usage", LedgerPlane(database)
    journal = Journal(folder)
    journal.closed(some("a"))
    journal.close()
    (file,) = folder.glob("*.jsonl")
    os.utime(file, (time.time() - 3 * module.DAY_S,) * 2)
    plane.failure = Unavailable("away", retry_after_s=1.0)
    async with shipping(folder, plane, keep_days=2):
        while len(plane.commands) < 3:
            await asyncio.sleep(FAST)
        assert file.exists()  # however old it is
        plane.failure = None
        await until_shipped(plane, "a")
        async with asyncio.timeout(WAIT_S):
            while file.exists():
                await asyncio.sleep(FAST)


async def test_journals_that_do_not_grow_are_read_at_every_fifth_look_alone(database, tmp_path, monkeypatch):
    plane, folder = LedgerPlane(database), tmp_path / "usage"
    journal, looks, is_calm = Journal(folder), [], Shipper._is_calm

    def noted(shipper):
        looks.append(is_calm(shipper))
        return looks[-1]

    monkeypatch.setattr(Shipper, "_is_calm", noted)
    async with shipping(folder, plane):
        journal.closed(some("a"))
        await until_shipped(plane, "a")
        looks.clear()
        async with asyncio.timeout(WAIT_S):
            while len(looks) < 40:
                await asyncio.sleep(FAST)
    rest = looks[looks.index(False, 10) :]
    assert rest[:10] == [False, *[True] * 4] * 2
    journal.close()
