"""GET /api/2.0/live: figures of now, for those who may see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from serve_app.accounts.keys import new_key
from serve_app.live.latencies import FINE_LONG, LatencyCounts, since
from serve_app.live.ring import newest_settled
from serve_app.types import EngineStats, Scope
from serve_app.types.control.endpoints import Grant
from serve_app.types.control.live import NUM_SLOTS, SLOT_S, EntityCounts, LiveSlot, ReplicaLoad
from tests.support.described import Document
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway

PATH: Final = "/api/2.0/live"
SPLIT: Final = {
    "name": "split",
    "served_entities": [{"model": "demo", "name": "old"}, {"model": "org/other", "name": "new"}],
    "traffic": {"old": 50, "new": 50},
}


ENDPOINTS: Final = ({"name": "demo"}, SPLIT)


def counts(endpoint: str, entity: str, **fields: Any) -> EntityCounts:
    return EntityCounts(endpoint=endpoint, entity=entity, **fields)


@asynccontextmanager
async def showing(
    *entities: EntityCounts, age: int = 10, **options: Any
) -> AsyncIterator[tuple[Gateway, int]]:
    """A gateway that saw `entities` in one slot, `age` slots before the newest; and that slot's number."""
    async with gateway(endpoints=ENDPOINTS, **options) as g:
        number = newest_settled(time.time()) - age
        loads = {"r1": ReplicaLoad(app="model-demo", running=2, waiting=1, blocks_total=10, blocks_used=5)}
        slot = LiveSlot(number=number, entities=entities, replicas=loads)
        g.app.state.services.live.pulse.slots.add(slot)
        yield g, number


async def get(g: Gateway, **options: Any) -> Any:
    answer = await g.client.get(PATH, **options)
    problems = Document(g.app.openapi()).problems(
        "GET", PATH, answer.status_code, answer.headers["content-type"], answer.content
    )
    assert list(problems) == []
    return answer


def named(body: Any, endpoint: str) -> Any:
    (found,) = (each for each in body["endpoints"] if each["endpoint"] == endpoint)
    return found


async def test_an_idle_server_has_zeros_and_no_latencies() -> None:
    async with gateway(endpoints=ENDPOINTS) as g:
        body = (await get(g)).json()
    assert (body["gateways"], body["slot_s"], body["window_s"]) == ("one", SLOT_S, 60.0)
    assert len(body["times"]) == NUM_SLOTS
    assert [each["endpoint"] for each in body["endpoints"]] == ["demo", "split"]
    split = named(body, "split")
    assert [each["entity"] for each in split["entities"]] == ["old", "new"]
    assert split["window"]["requests_per_s"] == 0
    assert split["window"]["first_token_s"] == {"p50": None, "p95": None, "p99": None}
    assert set(split["series"]["tokens_per_s"]) == {0}
    demo = body["applications"][0]
    assert (demo["application"], demo["replicas"], demo["running"], demo["kv_use"]) == ("model-demo", 1, 0, 0)
    assert set(demo["series"]["running"]) == {0}


async def test_entities_are_told_apart_and_summed_up_by_endpoint() -> None:
    counted = LatencyCounts(FINE_LONG)
    counted.observe(0.2)
    first = since(counted.counts, ())
    seen = (
        counts("split", "old", requests=6, errors=2, completion_tokens=600, first_token=first),
        counts("split", "new", requests=3, refused=1, in_flight=4),
        counts("split", "gone", requests=3),
    )
    async with showing(*seen) as (g, number):
        body = (await get(g, params={"window": "300"})).json()
    place = body["times"].index((number + 1) * SLOT_S)
    split = named(body, "split")
    assert split["window"]["requests_per_s"] == 12 / 300
    assert split["window"]["errors_per_s"] == pytest.approx(2 / 300, abs=1e-6)
    assert split["series"]["requests_per_s"][place] == 6.0
    assert sum(split["series"]["requests_per_s"]) == 6.0
    old, new, gone = split["entities"]
    assert old["series"]["tokens_per_s"][place] == 300.0
    assert old["window"]["first_token_s"]["p95"] == pytest.approx(0.2, rel=0.2)
    assert old["series"]["first_token_s"]["p50"][place] == pytest.approx(0.2, rel=0.2)
    assert (new["series"]["in_flight"][place], new["window"]["in_flight"]) == (4, 0)
    assert (gone["entity"], gone["application"]) == ("gone", None)
    demo = next(each for each in body["applications"] if each["application"] == "model-demo")
    assert demo["series"]["kv_use"][place] == 0.5
    assert demo["series"]["running"][place] == 2
    assert named(body, "demo")["window"]["requests_per_s"] == 0


async def test_the_window_and_the_points_are_those_that_are_asked_for() -> None:
    async with showing(counts("demo", "demo", requests=4), age=100) as (g, _):
        whole = (await get(g)).json()
        assert named(whole, "demo")["window"]["requests_per_s"] == 0
        since = (await get(g, params={"since": whole["times"][-3], "endpoint": "demo"})).json()
        assert since["times"][:2] == whole["times"][-2:]
        assert len(since["times"]) < 30
        assert [each["endpoint"] for each in since["endpoints"]] == ["demo"]
        assert len(since["endpoints"][0]["series"]["requests_per_s"]) == len(since["times"])
        later = (await get(g, params={"since": time.time() + 1000})).json()
        assert len(later["times"]) < 2
        wide = (await get(g, params={"window": "300"})).json()
        assert named(wide, "demo")["window"]["requests_per_s"] == pytest.approx(4 / 300, abs=1e-6)


async def test_a_real_request_shows() -> None:
    loads = {"model-demo": {"r1": EngineStats(running=1, blocks_total=10, blocks_used=1)}}
    async with gateway(endpoints=ENDPOINTS) as g:
        g.backend.loads = loads
        assert (await g.client.post(CHAT, json=chat_body())).status_code == 200
        deadline = time.monotonic() + 60
        while not (window := named((await get(g)).json(), "demo")["window"])["requests_per_s"]:
            assert time.monotonic() < deadline
            g.backend.loads = {}
            await asyncio.sleep(0.2)
        assert window["requests_per_s"] == pytest.approx(1 / 60, abs=1e-6)
        assert window["tokens_per_s"] > 0
        g.app.state.services.live.pulse.close()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"window": "1"}, "window"),
        ({"window": "301"}, "window"),
        ({"window": "nan"}, "window"),
        ({"window": "x"}, "window"),
        ({"since": "-1"}, "since"),
        ({"since": "inf"}, "since"),
        ({"other": "1"}, "other"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(params: dict[str, str], field: str) -> None:
    async with gateway() as g:
        answer = await get(g, params=params)
        assert answer.status_code == 400
        assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
        assert answer.json()["message"].startswith(field)


async def test_an_endpoint_that_is_not_there_is_not_found() -> None:
    async with gateway() as g:
        assert (await get(g, params={"endpoint": "nowhere"})).status_code == 404


async def test_a_key_needs_a_scope_and_sees_the_endpoints_that_it_may() -> None:
    secrets, lines = {}, []
    for scope in (Scope.INFERENCE, Scope.METRICS, Scope.MANAGE):
        secrets[scope], line = new_key(scope.value, [scope])
        lines.append(line)
    async with showing(counts("demo", "demo", requests=4), keys=" ".join(lines)) as (g, _):
        assert (await get(g)).status_code == 401
        assert (await get(g, headers=bearer(secrets[Scope.INFERENCE]))).status_code == 403
        elsewhere = Grant(principal="else", kind="user_name", level="CAN_VIEW")
        g.app.state.services.directory.permit({"demo": [elsewhere]})
        for scope, expected in ((Scope.METRICS, ["split"]), (Scope.MANAGE, ["demo", "split"])):
            body = (await get(g, headers=bearer(secrets[scope]))).json()
            assert [each["endpoint"] for each in body["endpoints"]] == expected
        hidden = await get(g, headers=bearer(secrets[Scope.METRICS]), params={"endpoint": "demo"})
        assert hidden.status_code == 404
        own = replace(elsewhere, principal=Scope.METRICS.value)
        g.app.state.services.directory.permit({"demo": [own]})
        shown = await get(g, headers=bearer(secrets[Scope.METRICS]), params={"endpoint": "demo"})
        assert shown.status_code == 200
