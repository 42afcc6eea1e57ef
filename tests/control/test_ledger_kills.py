"""kill -9 of gateway, replica and control plane at random points under load (fault F9).

Afterwards the ledger has one row for each request that was admitted, with never more tokens than were made
and never none for a stream of which its client had a part.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
import pytest_asyncio

from serve_app.control.database.database import Database
from serve_app.errors import Unavailable
from serve_app.types import UsageRecord
from serve_app.types.control import ReportUsage
from tests.control.server import MODEL, Controlled, admitted, controlled, small_file
from tests.deploy.answers import bare
from tests.deploy.deployment import COMPLETIONS, Deployed, app_of, edited
from tests.support.databases import PostgresServer
from tests.support.invariants import children
from tests.support.ledger import read_rows
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1800)]

KINDS: Final = {
    "gateway": "ServeReplica:system:Gateway",
    "replica": f"ServeReplica:model-{MODEL}:",
    "control plane": "ServeReplica:system:ControlPlane",
}
CLIENTS: Final = 6
TOKENS: Final = (8, 64)  # of one answer
WAIT_S: Final = 600.0
PAUSE_S: Final = 0.1  # of a client that was refused


@dataclass
class Asked:
    """One request, as its client saw it."""

    tokens: int  # that a whole answer has
    id: str = ""
    pieces: int = 0  # of text that arrived
    is_whole: bool = False


@dataclass
class Load:
    """Clients that ask until `count` requests were answered, at least in part."""

    server: Deployed
    count: int
    seed: int
    asked: list[Asked] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._ask_many(random.Random(f"{self.seed}-{number}")))

    @property
    def answered(self) -> list[Asked]:
        return [each for each in self.asked if each.id]

    async def _ask_many(self, chance: random.Random) -> None:
        while len(self.answered) < self.count:
            asked = Asked(chance.randint(*TOKENS))
            self.asked.append(asked)
            with suppress(httpx.HTTPError, ValueError):  # cut
                await self._ask(asked, is_stream=chance.random() < 0.7)
            if not asked.id:
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, asked: Asked, *, is_stream: bool) -> None:
        body = {
            "model": MODEL,
            "prompt": f"{asked.tokens}",
            "max_tokens": asked.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": is_stream,
        }
        async with self.server.client.stream("POST", COMPLETIONS, json=body) as answer:
            if answer.status_code != 200:
                return
            if not is_stream:
                whole = json.loads(await answer.aread())
                asked.id, asked.is_whole = bare(whole["id"]), True
                asked.pieces = 1
                return
            is_broken = False
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    asked.is_whole = not is_broken
                elif line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    is_broken |= "error" in event
                    if "id" in event:
                        asked.id = bare(event["id"])
                        asked.pieces += any(choice.get("text") for choice in event["choices"])


async def kill(kinds: list[str], load: Load, chance: random.Random) -> None:
    """Kill a process of each of `kinds`, spread at random over the load."""
    places = sorted(chance.randint(1, load.count - 1) for _ in kinds)
    for kind, place in zip(kinds, places, strict=True):
        async with asyncio.timeout(WAIT_S):
            while len(load.answered) < place or not (found := children(KINDS[kind])):
                await asyncio.sleep(0.01)
        await asyncio.sleep(chance.random() / 5)
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


async def until_all_is_there(database: Database, folder: Path, load: Load) -> dict[str, UsageRecord]:
    """The ledger, once it has all that was admitted and what streams had delivered."""
    delivered = {each.id for each in load.answered if each.pieces}
    rows: dict[str, UsageRecord] = {}
    async with asyncio.timeout(WAIT_S):
        while True:
            wanted = await asyncio.to_thread(admitted, folder)
            try:
                rows = await read_rows(database)
            except Unavailable:
                continue
            if wanted == set(rows) and all(rows[id].completion_tokens for id in delivered & set(rows)):
                return rows
            await asyncio.sleep(0.2)


async def check(made: Controlled, database: Database, count: int, kinds: list[str], seed: int) -> None:
    chance = random.Random(seed)
    load = Load(made.server, count, seed)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        tasks.create_task(kill(kinds, load, chance))
    await made.server.until_running()
    rows = await until_all_is_there(database, made.server.usage, load)
    assert len(load.answered) >= count
    for each in load.answered:
        row = rows[each.id]
        assert row.outcome in ("finished", "lost", "failed", "aborted")
        assert row.completion_tokens <= each.tokens, "more than were generated"
        assert row.completion_tokens or not each.pieces, "delivered, and free"
        if row.outcome == "finished":
            assert row.completion_tokens == each.tokens
        elif each.is_whole:
            assert row.outcome == "lost", "its gateway died before it could say how the request ended"
    ((total,),) = [report.rows for report in [await made.do(ReportUsage(by=()))]]
    assert sum(total.requests.values()) == len(rows)
    assert total.completion_tokens == sum(row.completion_tokens for row in rows.values())


@pytest.mark.full  # tests/unit/control/ledger has repeated and lost records
async def test_each_request_has_one_row_after_one_kill_of_each(controlled_server: Controlled) -> None:
    database = Database(f"sqlite:///{controlled_server.server.usage / 'control.db'}")
    await check(controlled_server, database, count=20, kinds=["control plane", "replica", "gateway"], seed=1)
    database.close()


@pytest_asyncio.fixture(params=["sqlite", "postgresql"], loop_scope="session")
async def server_on(
    request: pytest.FixtureRequest, ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Controlled, Database]]:
    """A server whose control plane has a database of each kind."""
    folder: Path = tmp_path_factory.mktemp("kills")
    url = f"sqlite:///{folder / 'control.db'}"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database()
    raw = edited(
        small_file(), lambda raw: app_of(raw, "system")["args"].update(control={"database_url": url})
    )
    async with controlled(ray_cluster, raw, folder) as made:
        database = Database(url)
        yield made, database
        database.close()


@pytest.mark.full
async def test_each_request_has_one_row_after_many_kills_on_either_database(
    server_on: tuple[Controlled, Database],
) -> None:
    made, database = server_on
    kinds = random.Random(7).choices(list(KINDS), k=15)
    await check(made, database, count=300, kinds=kinds, seed=7)
