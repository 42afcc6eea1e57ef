"""Reports of the ledger: sums by any field, for whom they are meant."""

from dataclasses import replace

import pytest

from serve_app.control.ledger.reports import FIELDS
from serve_app.errors import InvalidField, PermissionDenied
from serve_app.types import Caller, Scope, UsageRecord
from serve_app.types.control import ReportUsage, ShipUsage
from tests.support.databases import open_database
from tests.support.ledger import LedgerPlane

DAY_S = 86_400.0
MARCH = 1_772_323_200.0  # 2026-03-01 UTC
MANAGER = Caller(key_id="root", scopes=frozenset({Scope.MANAGE}), salt="")
ALICE = Caller(key_id="alice", scopes=frozenset({Scope.INFERENCE}), salt="")
RECORD = UsageRecord(
    id="",
    key_id="alice",
    user="ada",
    groups=("sea", "staff"),
    endpoint="chat",
    entity="one",
    kind="pay_per_token",
    route="/v1/chat/completions",
    started=MARCH,
    outcome="finished",
    status=200,
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=20,
    first_token_s=0.5,
    total_s=2.0,
    migrations=1,
    cost=0.25,
    currency="USD",
)
RECORDS = [
    replace(RECORD, id="a"),
    replace(RECORD, id="b", outcome="failed", first_token_s=None, completion_tokens=0, cost=0.0, total_s=1.0),
    replace(RECORD, id="c", entity="two", started=MARCH + DAY_S, first_token_s=1.5),
    replace(RECORD, id="d", key_id="bob", user="bob", groups=(), endpoint="embed", cost=2.0, currency="EUR"),
    replace(RECORD, id="e", started=MARCH - 1.0),
    replace(RECORD, id="f", shadow=True, cost=None, currency=None),
]


@pytest.fixture
async def plane(database):
    found = LedgerPlane(database)
    await found.do(ShipUsage(ended=tuple(RECORDS)), MANAGER)
    return found


async def rows(plane, caller=MANAGER, **asked):
    return {row.group: row for row in (await plane.do(ReportUsage(**asked), caller)).rows}


async def test_by_endpoint_and_entity_unless_asked_otherwise(plane):
    found = await rows(plane)
    assert list(found) == [("chat", "one"), ("chat", "two"), ("embed", "one")]
    row = found["chat", "one"]
    assert row.requests == {"finished": 2, "failed": 1}
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.migrations) == (30, 12, 40, 3)
    assert row.cost == {"USD": 0.5}
    assert row.first_token_s == pytest.approx(0.5)  # the mean of those that have one
    assert row.total_s == pytest.approx(5.0 / 3)
    assert found["embed", "one"].cost == {"EUR": 2.0}


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("key", {"alice": 4, "bob": 1}),
        ("user", {"ada": 4, "bob": 1}),
        ("group", {"": 1, "sea": 4, "staff": 4}),  # in each group of its user
        ("kind", {"pay_per_token": 5}),
        ("route", {"/v1/chat/completions": 5}),
        ("outcome", {"finished": 4, "failed": 1}),
        ("day", {"2026-02-28": 1, "2026-03-01": 3, "2026-03-02": 1}),
        ("month", {"2026-02": 1, "2026-03": 4}),
    ],
)
async def test_by_each_field(plane, by, groups):
    found = await rows(plane, by=(by,))
    assert {group: sum(row.requests.values()) for (group,), row in found.items()} == groups


async def test_everything_together_in_one_row(plane):
    ((group, row),) = (await rows(plane, by=())).items()
    assert group == ()
    assert sum(row.requests.values()) == 5
    assert row.cost == {"USD": 0.75, "EUR": 2.0}


async def test_within_a_time_an_endpoint_and_a_key(plane):
    found = await rows(plane, by=("day",), since=MARCH, until=MARCH + DAY_S, endpoint="chat", key="alice")
    assert {group: sum(row.requests.values()) for group, row in found.items()} == {("2026-03-01",): 2}


async def test_copies_are_asked_for_alone(plane):
    ((_, row),) = (await rows(plane, shadow=True)).items()
    assert row.requests == {"finished": 1}
    assert row.cost == {}


async def test_a_key_without_the_scope_sees_its_own_usage_alone(plane):
    assert set(await rows(plane, ALICE, by=("key",))) == {("alice",)}
    assert set(await rows(plane, ALICE, by=("key",), key="alice")) == {("alice",)}
    with pytest.raises(PermissionDenied):
        await rows(plane, ALICE, key="bob")


async def test_only_gateways_ship(plane):
    with pytest.raises(PermissionDenied):
        await plane.do(ShipUsage(), ALICE)


async def test_a_field_that_is_none_is_named(plane):
    with pytest.raises(InvalidField, match="by: 'colour' is none of endpoint, entity, key"):
        await rows(plane, by=("colour",))


async def test_postgresql_says_the_same(plane, postgres_url):
    opened = open_database(postgres_url)
    other = LedgerPlane(opened)
    await other.do(ShipUsage(ended=tuple(RECORDS)), MANAGER)
    for by in (tuple(FIELDS), ("month", "group"), ()):
        assert await rows(other, by=by, since=MARCH) == await rows(plane, by=by, since=MARCH)
    opened.close()


async def test_more_rows_than_an_answer_may_have_are_refused(plane, monkeypatch):
    monkeypatch.setattr("serve_app.control.ledger.reports.MAX_ROWS", 2)
    with pytest.raises(InvalidField, match="by: gives more than 2 rows"):
        await rows(plane, by=("day",))
