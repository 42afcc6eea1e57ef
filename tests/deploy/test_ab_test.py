"""deploy/ab_test.yaml: shares, sticky callers, and new shares while requests are under way."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.endpoints.split import candidates
from tests.deploy.answers import completion, every_endpoint_answers, whole
from tests.deploy.deployment import (
    COMPLETIONS,
    DEMO,
    Deployed,
    Raw,
    app_of,
    deploy_file,
    deployed,
    edited,
    endpoints_of,
    gateway_of,
)
from tests.deploy.load import a_round, nothing_is_lost
from tests.support.invariants import WAIT_S, unharmed
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

OLD: Final = "demo-chat-1"
NEW: Final = "demo-chat-2"
AT_ONCE: Final = 16
SIGMAS: Final = 4.5
USERS: Final = 5  # of each client of a load


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("ab_test"), usage) as server:
        yield server


def shared(raw: Raw, new: int) -> Raw:
    """The file with `new` percent for the new version."""

    def edit(raw: Raw) -> None:
        endpoints_of(raw)[0]["traffic"] = {OLD: 100 - new, NEW: new}

    return edited(raw, edit)


def drawn(raw: Raw, user: str) -> str:
    """The entity that is due to a user whom X-Routing-Key names."""
    catalogue = parse_catalogue(gateway_of(raw)["user_config"])
    endpoint = next(endpoint for endpoint in catalogue.endpoints if endpoint.name == DEMO)
    return candidates(endpoint, f"header:{user}")[0].name


async def test_every_endpoint_answers(server: Deployed) -> None:
    await every_endpoint_answers(server, {DEMO, "champion-challenger"})


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.full)])
async def test_traffic_is_split_as_the_file_says(server: Deployed, count: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    before = await answered(server)

    async def one(endpoint: str, number: int) -> str:
        async with gate:
            headers = {"X-Routing-Key": f"{endpoint}-{number}"}
            return (await whole(server.client, completion(endpoint, max_tokens=1), **headers)).entity

    for endpoint, entity, share in ((DEMO, NEW, 0.1), ("champion-challenger", "champion", 0.5)):
        counts = Counter(await asyncio.gather(*(one(endpoint, number) for number in range(count))))
        assert abs(counts[entity] - count * share) <= SIGMAS * math.sqrt(count * share * (1 - share))
        told = await answered(server)
        assert {name: told[name] - before[name] for name in counts} == counts  # in the metrics as well


async def answered(server: Deployed) -> Counter[str]:
    """Completions that succeeded, by entity, as the metrics have it."""
    counts: Counter[str] = Counter()
    for name, value in (await server.metrics()).items():
        if name.startswith("serve_app_requests_total") and f'"{COMPLETIONS}",status="200"' in name:
            counts[name.split('entity="')[1].split('"')[0]] += int(value)
    return counts


async def test_a_caller_stays_with_its_entity(server: Deployed) -> None:
    async with unharmed(server) as watch:
        for user in ("a", "b", "c"):
            by_header = [
                await whole(server.client, completion(DEMO, max_tokens=1), **{"X-Routing-Key": user})
                for _ in range(5)
            ]
            assert {answer.entity for answer in by_header} == {drawn(server.raw, user)}
            by_user = [
                await whole(server.client, completion(DEMO, max_tokens=1, user=user)) for _ in range(5)
            ]
            assert len({answer.entity for answer in by_user}) == 1
            watch.sent += 10


async def test_f11_new_shares_under_load_lose_no_request(server: Deployed) -> None:
    gateways = await server.gateways()
    files = {new: shared(server.raw, new) for new in (10, 50, 100)}
    async with nothing_is_lost(server, USERS) as log:
        await a_round(log, USERS)
        for new, raw in files.items():
            await server.deploy(raw)
            await server.until_traffic(DEMO, {OLD: 100 - new, NEW: new})
            await a_round(log, USERS)
            for user, answers in log.by_user().items():
                assert answers[-1] == drawn(raw, user)
    for user, answers in log.by_user().items():  # nobody came back: only the share that moved saw a change
        changes = sum(before != after for before, after in pairwise(answers))
        assert changes == (drawn(files[10], user) == OLD), user
    assert await server.gateways() == gateways


@pytest.mark.full
async def test_f11_a_wrong_catalogue_is_refused_and_the_old_one_serves(server: Deployed) -> None:
    gateways = await server.gateways()
    right, half = server.raw, shared(server.raw, 50)

    def mistake(raw: Raw) -> None:
        endpoints_of(raw)[0]["traffic"] = {OLD: 40, NEW: 40}

    async with nothing_is_lost(server, USERS) as log:
        await a_round(log, USERS)
        await server.deploy(edited(right, mistake))
        await until_refused(server, 1.0)
        await a_round(log, USERS)
        for user, answers in log.by_user().items():
            assert answers[-1] == drawn(right, user)
        await server.deploy(half)
        await server.until_traffic(DEMO, {OLD: 50, NEW: 50})
        await until_refused(server, 0.0)
        await a_round(log, USERS)
        assert {answers[-1] for answers in log.by_user().values()} == {OLD, NEW}
    assert await server.gateways() == gateways


@pytest.mark.full
async def test_f11_all_that_can_change_changes_under_load(server: Deployed) -> None:
    """Args of the gateway, args of a model without room for two, and a model less. Last in this file."""

    def edit(raw: Raw) -> None:
        app_of(raw, "system")["args"]["max_in_flight"] = 99
        model = app_of(raw, f"model-{DEMO}_v_1")
        model["args"]["engine"]["max_sequences"] = 7
        model["deployments"][0]["max_surge_percent"] = 0  # passed over while it restarts
        raw["applications"].remove(app_of(raw, f"model-{DEMO}-bf16"))
        del endpoints_of(raw)[1:]

    await server.deploy(shared(server.raw, 10))
    await server.until_traffic(DEMO, {OLD: 90, NEW: 10})
    gateways = set(await server.gateways())
    async with nothing_is_lost(server) as log:
        await server.roll_out(edited(server.raw, edit))
    assert log.since(0) == {OLD, NEW}
    assert not gateways & set(await server.gateways())
    assert (await server.engine_of(f"model-{DEMO}_v_1")).running == 0


async def until_refused(server: Deployed, value: float) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await server.metrics())["serve_app_catalogue_refused"] != value:
            await asyncio.sleep(0.05)
