"""GET /api/2.0/usage: the ledger's sums as JSON and CSV, for those who may see them."""

import csv
import io
from contextlib import asynccontextmanager

import pytest

from serve_app.accounts.keys import new_key
from serve_app.types import Scope
from serve_app.types.control import ShipUsage
from tests.support.described import Document
from tests.support.gateway import bearer, gateway
from tests.support.ledger import LedgerPlane
from tests.unit.control.ledger.test_reports import MANAGER, RECORDS

PATH = "/api/2.0/usage"


@asynccontextmanager
async def reporting(database, **options):
    plane = LedgerPlane(database)
    await plane.do(ShipUsage(ended=tuple(RECORDS)), MANAGER)
    async with gateway(management=plane, **options) as found:
        yield found


async def get(g, **options):
    answer = await g.client.get(PATH, **options)
    problems = Document(g.app.openapi()).problems(
        "GET", PATH, answer.status_code, answer.headers["content-type"], answer.content
    )
    assert list(problems) == []
    return answer


async def test_sums_as_json(database):
    async with reporting(database) as g:
        answer = await get(g, params={"by": "endpoint,month", "since": "2026-03-01", "key": "alice"})
        total = {
            "requests": {"finished": 2, "failed": 1},
            "prompt_tokens": 30,
            "cached_tokens": 12,
            "completion_tokens": 40,
            "migrations": 3,
            "cost": {"USD": 0.5},
            "first_token_s": 1.0,
            "total_s": pytest.approx(5 / 3),
        }
        assert answer.json() == {
            "by": ["endpoint", "month"],
            "count": 1,
            "total": total,
            "rows": [{"endpoint": "chat", "month": "2026-03", **total}],
        }


async def test_some_of_the_sums_and_the_total_of_all(database):
    async with reporting(database) as g:
        every = (await get(g, params={"by": "key,day,outcome"})).json()
        some = (await get(g, params={"by": "key,day,outcome", "limit": 2, "offset": 1})).json()
        assert every["count"] == len(every["rows"]) > 3
        assert some == {**every, "rows": every["rows"][1:3]}
        assert (await get(g, params={"by": "", "offset": 1})).json()["rows"] == []
        for name, value in (("limit", "0"), ("limit", "10001"), ("limit", "ten"), ("offset", "-1")):
            refused = await get(g, params={name: value})
            assert refused.status_code == 400
            assert refused.json()["message"].startswith(f"{name}: must be an integer from ")


async def test_sums_as_csv(database):
    async with reporting(database) as g:
        answer = await get(g, params={"by": "key", "format": "csv", "until": "1772323200"})
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert "usage.csv" in answer.headers["content-disposition"]
        (row,) = csv.DictReader(io.StringIO(answer.text))
        assert row == {
            "key": "alice",
            "requests": "1",
            "finished": "1",
            "failed": "0",
            "aborted": "0",
            "lost": "0",
            "prompt_tokens": "10",
            "cached_tokens": "4",
            "completion_tokens": "20",
            "migrations": "1",
            "cost_USD": "0.25",
            "first_token_s": "0.5",
            "total_s": "2.0",
        }


async def test_all_in_one_row_and_shadow_copies(database):
    async with reporting(database) as g:
        (row,) = (await get(g, params={"by": ""})).json()["rows"]
        assert sum(row["requests"].values()) == 5
        (row,) = (await get(g, params={"by": "", "shadow": "true"})).json()["rows"]
        assert row["requests"] == {"finished": 1}


async def test_a_key_sees_its_own_usage_and_a_manager_everybodys(database):
    secret, line = new_key("alice", [Scope.INFERENCE])
    manage, other = new_key("root", [Scope.MANAGE])
    metrics, third = new_key("graphs", [Scope.METRICS])
    async with reporting(database, keys=f"{line} {other} {third}") as g:
        own = await get(g, params={"by": "key"}, headers=bearer(secret))
        assert [row["key"] for row in own.json()["rows"]] == ["alice"]
        refused = await get(g, params={"key": "bob"}, headers=bearer(secret))
        assert (refused.status_code, refused.json()["error_code"]) == (403, "PERMISSION_DENIED")
        everybody = await get(g, params={"by": "key"}, headers=bearer(manage))
        assert [row["key"] for row in everybody.json()["rows"]] == ["alice", "bob"]
        assert (await get(g, headers=bearer(metrics))).status_code == 403
        assert (await get(g)).status_code == 401


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"by": "colour"}, "by: 'colour' is none of endpoint, entity, key, user"),
        ({"since": "yesterday"}, "since: must be an ISO date or time in UTC"),
        ({"until": "nan"}, "until: must be an ISO date or time in UTC"),
        ({"until": "-1"}, "until: must be an ISO date or time in UTC"),
        ({"since": "1e300"}, "since: must be an ISO date or time in UTC"),
        ({"format": "xml"}, "format: must be one of json, csv"),
        ({"shadow": "yes"}, "shadow: must be true or false"),
        ({"from": "2026"}, "from: is unknown here; known are by, since"),
    ],
)
async def test_what_is_wrong_is_named_with_what_would_be_right(database, query, words):
    async with reporting(database) as g:
        answer = await get(g, params=query)
        assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert answer.json()["message"].startswith(words)


async def test_without_a_control_plane_it_is_said_which_setting_is_off():
    async with gateway() as g:
        answer = await get(g)
        assert answer.status_code == 404
        assert "control.enabled" in answer.json()["message"]
