"""Migrations make the tables that the code declares, once, whoever starts beside whom."""

import multiprocessing
import time

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from serve_app.control.database.database import Database
from serve_app.control.database.migrate import upgrade
from serve_app.control.database.problem import DatabaseProblem, is_away
from serve_app.control.database.url import open_engine
from serve_app.control.new_migration import METADATA

AT_ONCE = 2


def test_they_end_at_the_tables_as_they_are_declared(each_url):
    engine = open_engine(each_url)
    upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, METADATA)
    engine.dispose()
    assert not differences, "run `make migration`"


def test_they_keep_what_is_in_the_tables(each_url):
    engine = open_engine(each_url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO usage_spending VALUES ('2026-03', 'alice', 'USD', 1.5)"))
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT cost FROM usage_spending")) == 1.5
    engine.dispose()


def test_several_that_start_at_once_make_the_tables_once(each_url):
    context = multiprocessing.get_context("spawn")
    start, failures = context.Barrier(AT_ONCE), context.SimpleQueue()
    processes = [context.Process(target=_upgrade, args=(each_url, start, failures)) for _ in range(AT_ONCE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert failures.empty(), failures.get()
    assert [process.exitcode for process in processes] == [0] * AT_ONCE
    engine = open_engine(each_url)
    assert set(METADATA.tables) <= set(inspect(engine).get_table_names())
    with engine.connect() as connection:
        assert len(connection.execute(text("SELECT * FROM alembic_version")).all()) == 1
    engine.dispose()


def _upgrade(url, start, failures):
    engine = open_engine(url)
    start.wait(60)
    deadline = time.monotonic() + 60
    while True:
        try:
            upgrade(engine)
            break
        except Exception as error:
            # SQLite gives up soon where others wait too; whoever opens a database tries again.
            if time.monotonic() > deadline or not is_away(error):
                failures.put(repr(error))
                break
    engine.dispose()


async def test_tables_of_a_newer_version_are_left_alone_and_said_so(each_url):
    engine = open_engine(each_url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    database = Database(each_url)
    with pytest.raises(DatabaseProblem, match="a newer version of serve-app"):
        await database.run(lambda session: None)
    database.close()
