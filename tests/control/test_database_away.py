"""The database is locked, gone or frozen while the server serves, and while it starts (fault F8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from serve_app.accounts.keys import new_key, new_secret
from serve_app.control.database.database import Database
from serve_app.errors import Unavailable
from serve_app.types import UsageRecord
from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    CreateKey,
    DeleteEndpoint,
    EntityWanted,
    GetEndpoint,
    ListEndpoints,
    UpdateState,
)
from tests.control.outages import Outage, frozen, locked, stopped
from tests.control.server import MODEL, READY_S, Controlled, admitted, controlled, small_file
from tests.control.timed_streams import Stream, Streams, percentile, timed_streams
from tests.deploy.deployment import app_of, edited
from tests.support.databases import PostgresServer
from tests.support.gateway import bearer
from tests.support.ledger import read_rows
from tests.support.ray_cluster import Cluster

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

ENDPOINTS: Final = "/api/2.0/serving-endpoints"
USAGE: Final = "/api/2.0/usage"
SHORT_S: Final = 1.0  # after the first refusal, which comes when a transaction has waited for the lock
BEFORE_S: Final = 30.0
LONG_S: Final = 60.0


@dataclass
class Case:
    """A server, its database, and how that goes away."""

    made: Controlled
    url: str
    outage: Outage


@pytest_asyncio.fixture(params=["locked", "stopped", "frozen"], loop_scope="session")
async def case(
    request: pytest.FixtureRequest, ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Case]:
    """A server of its own: one on SQLite, two on PostgreSQL."""
    folder: Path = tmp_path_factory.mktemp("away")
    if request.param == "locked":
        url, outage = f"sqlite:///{folder / 'control.db'}", locked(folder / "control.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url, outage = server.new_database(), (stopped if request.param == "stopped" else frozen)(server)
    raw = edited(small_file(), lambda raw: app_of(raw, "system")["args"]["control"].update(database_url=url))
    async with controlled(ray_cluster, raw, folder) as made:
        yield Case(made, url, outage)


@pytest.mark.full  # tests/unit/control has a database that is away
async def test_streams_and_their_usage_outlive_a_lock(controlled_server: Controlled) -> None:
    file = controlled_server.server.usage / "control.db"
    case = Case(controlled_server, f"sqlite:///{file}", locked(file))
    await check_outage(case, before_s=0.5, outage_s=SHORT_S, seed=1)


@pytest.mark.full
async def test_streams_and_their_usage_outlive_a_minute_without_a_database(case: Case) -> None:
    """The caller's key is of the database too."""
    await case.made.do(CreateKey(name="admin", scopes=("inference", "manage", "metrics")))
    alice = await case.made.do(CreateKey(name="alice", scopes=("inference", "manage", "metrics")))
    case.made.server.client.headers.update(bearer(alice.secret))
    await until_status(case.made, ENDPOINTS, 200)
    await check_outage(case, before_s=BEFORE_S, outage_s=LONG_S, seed=2)


@pytest.mark.full
async def test_a_server_starts_without_its_database_and_has_all_when_that_comes(case: Case) -> None:
    made = case.made
    for name, is_provisioned in (("shared", False), ("bought", True)):
        entity = EntityWanted(entity_name=MODEL, provisioned_model_units=1 if is_provisioned else None)
        config = ConfigWanted(entities=(entity,), traffic={})
        await made.do(CreateEndpoint(name=name, config=config, is_provisioned=is_provisioned))
        assert (await made.until_settled(name)).update is UpdateState.NOT_UPDATING
    async with case.outage():
        await made.restart("degraded")  # "bought" has no replica before the database is there
        for name in (MODEL, "shared"):  # of the deploy file, and of the snapshot that the gateway kept
            answer = await made.server.chat(name, max_tokens=4)
            assert answer.status_code == 200, (name, answer.text)
        assert (await made.server.client.delete(f"{ENDPOINTS}/shared")).status_code == 503
    async with asyncio.timeout(READY_S):
        while (await made.server.chat("bought", max_tokens=4)).status_code != 200:
            await asyncio.sleep(0.2)
    listed = (await made.do(ListEndpoints())).endpoints
    assert {each.name for each in listed} == {MODEL, "shared", "bought"}
    async with asyncio.timeout(READY_S):  # the control plane looks after gateways have found the replica
        while not (await made.do(GetEndpoint(name="bought"))).is_ready:
            await asyncio.sleep(0.2)
    await made.do(DeleteEndpoint(name="shared"))
    await until_status(made, f"{ENDPOINTS}/shared", 404)


@pytest.mark.full
async def test_a_first_start_without_a_database_serves_the_keys_of_the_file(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    """There is no snapshot either, so nobody knows which other keys there are."""
    key, line = new_key("operator", ["inference", "manage"])
    (tmp_path / "keys").write_text(line)
    raw = edited(
        small_file(), lambda raw: app_of(raw, "system")["args"].update(keys_file=str(tmp_path / "keys"))
    )
    async with AsyncExitStack() as outage:
        await outage.enter_async_context(locked(tmp_path / "control.db")())
        async with controlled(ray_cluster, raw, tmp_path) as made:
            assert (await made.server.chat(MODEL, max_tokens=4, headers=bearer(key))).status_code == 200
            for headers in (
                None,
                bearer(new_secret()),
            ):  # a stranger to the file may be known to the database
                answer = await made.server.chat(MODEL, max_tokens=4, headers=headers)
                assert answer.status_code == (401 if headers is None else 503), answer.text
            await outage.aclose()
            made.server.client.headers.update(bearer(key))
            await until_status(made, USAGE, 200)
            alice = await made.do(CreateKey(name="alice"))
            await until_status(made, "/v1/models", 200, bearer(alice.secret))
            await until_status(made, "/v1/models", 401, bearer(new_secret()))


async def check_outage(case: Case, *, before_s: float, outage_s: float, seed: int) -> None:
    """No request fails, and afterwards the ledger has each of them, whole."""
    clock = asyncio.get_running_loop().time
    async with timed_streams(case.made.server, seed) as log:
        began = clock()
        await asyncio.sleep(before_s)
        async with case.outage():
            outage = clock()
            await until_status(case.made, USAGE, 503)  # what needs the database says so
            assert (await case.made.server.client.get(ENDPOINTS)).status_code == 200  # lists go on
            wanted = {"name": "late", "config": {"served_entities": [{"entity_name": MODEL}]}}
            assert (await case.made.server.client.post(ENDPOINTS, json=wanted)).status_code == 503
            await asyncio.sleep(outage_s)
            if outage_s == LONG_S:  # gateways hear of it with their next poll
                told = (await case.made.server.client.get("/readyz")).json()
                assert told["status"] == "degraded"
                assert "nothing can be changed at run time" in str(told["reasons"])
            over = clock()
        await until_status(case.made, USAGE, 200)
        back_s = clock() - over
    log.assert_nothing_was_lost()
    during = log.between(outage, over)
    assert during
    database = Database(case.url)
    rows = await until_ledger_is_whole(database, case.made.server.usage, log)
    database.close()
    for stream in log.seen:
        row = rows[stream.id]
        assert (row.outcome, row.completion_tokens) == ("finished", stream.tokens)
    _tell("before", log.between(began, outage))
    _tell("during", during)
    logger.info(
        "changes again %.1f s after the outage; the ledger whole after %.1f s", back_s, clock() - over
    )


async def until_status(
    made: Controlled, path: str, status: int, headers: dict[str, str] | None = None
) -> None:
    async with asyncio.timeout(READY_S):
        while (await made.server.client.get(path, headers=headers)).status_code != status:
            await asyncio.sleep(0.1)


async def until_ledger_is_whole(database: Database, folder: Path, log: Streams) -> dict[str, UsageRecord]:
    """The ledger, once it has all that was admitted, and the ends of all streams."""
    ids = {each.id for each in log.seen}
    rows: dict[str, UsageRecord] = {}
    async with asyncio.timeout(READY_S):
        while rows.keys() != (wanted := await asyncio.to_thread(admitted, folder)) or any(
            rows[id].outcome == "lost" for id in ids
        ):
            try:
                rows = await read_rows(database)
            except Unavailable:
                continue
            if rows.keys() == wanted:
                break
            await asyncio.sleep(0.2)
    return rows


def _tell(when: str, streams: Sequence[Stream]) -> None:
    first = [each.first_token_s * 1000 for each in streams]
    total = [each.total_s * 1000 for each in streams]
    per_token = [each.total_s * 1000 / each.tokens for each in streams]
    words = ", ".join(
        f"{name} p50 {percentile(values, 0.5):.1f} p99 {percentile(values, 0.99):.1f} ms"
        for name, values in (("first token", first), ("whole", total), ("a token", per_token))
    )
    logger.info("%s: %d streams: %s", when, len(streams), words)
