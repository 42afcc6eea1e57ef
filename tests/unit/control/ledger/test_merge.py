"""The ledger has one row a request with exact tokens, in whatever order and however often it is told."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from serve_app.control.database.database import Database
from serve_app.control.ledger.ledger import Ledger, known_by
from serve_app.control.ledger.tables import Spending, Usage
from serve_app.errors import Unavailable
from serve_app.types import Caller, Scope, UsageRecord
from serve_app.types.control import SettledPart, ShipUsage
from tests.support.ledger import read_rows

GATEWAY = Caller(key_id="gateway", scopes=frozenset(Scope), salt="")
PRICE = 0.5


def record(id, tokens, *, outcome="lost", key_id="alice"):
    return UsageRecord(
        id=id,
        key_id=key_id,
        endpoint="chat",
        entity="demo",
        kind="pay_per_token",
        route="/v1/chat/completions",
        started=1_770_000_000.0,
        outcome=outcome,
        status=200,
        prompt_tokens=7,
        completion_tokens=tokens,
        total_s=tokens / 10,
        cost=tokens * PRICE,
        currency="USD",
    )


@st.composite
def requests(draw):
    """A request: the tokens of each prompt, and all messages that tell of it."""
    id = draw(st.uuids()).hex
    prompts = draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    delivered = draw(st.integers(0, sum(prompts)))
    ends = draw(st.booleans())
    messages = [("lost", record(id, delivered)), ("lost", record(id, delivered // 2))]
    told = []
    for number, tokens in enumerate(prompts):
        if not draw(st.booleans()):
            continue
        told.append(tokens)
        moves = draw(st.integers(0, 2))
        for attempt in range(moves + 1):  # an answer that moved is told again from its beginning
            so_far = tokens if attempt == moves else draw(st.integers(0, tokens))
            part = f"{id}-{number}" + (f"~{attempt}" if attempt else "")
            messages.append(("settled", replace(record(id, so_far), prompt_tokens=3), part))
    if ends:
        messages.append(("ended", record(id, sum(prompts), outcome="finished")))
    expected = sum(prompts) if ends else max(delivered, sum(told))
    return id, ("finished" if ends else "lost", expected), messages


def command(messages):
    return ShipUsage(
        ended=tuple(m[1] for m in messages if m[0] == "ended"),
        lost=tuple(m[1] for m in messages if m[0] == "lost"),
        settled=tuple(SettledPart(record=m[1], part=m[2]) for m in messages if m[0] == "settled"),
    )


@st.composite
def shipments(draw):
    """Requests, and batches that tell all of them: in any order, some again and again."""
    drawn = draw(st.lists(requests(), min_size=1, max_size=5, unique_by=lambda each: each[0]))
    messages = [message for _, _, told in drawn for message in told]
    again = draw(st.lists(st.sampled_from(messages), max_size=10))
    order = draw(st.permutations(messages + again))
    size = draw(st.integers(1, len(order)))
    batches = [order[place : place + size] for place in range(0, len(order), size)]
    return {id: expected for id, expected, _ in drawn}, batches


class Lossy:
    """A database whose acknowledgement is lost now and then: the transaction is there, and nobody is told."""

    def __init__(self, database, losses):
        self._database = database
        self._losses = losses

    async def run(self, work):
        result = await self._database.run(work)
        if next(self._losses, False):
            raise Unavailable("the connection broke")
        return result


def check(database, shipment, losses):
    expected, batches = shipment
    ledger = Ledger(Lossy(database, iter(losses)))
    ship = ledger.handlers()[ShipUsage]

    async def run():
        await database.run(lambda session: [session.execute(delete(table)) for table in (Usage, Spending)])
        for batch in batches:
            while True:
                try:
                    await ship(command(batch), GATEWAY)
                    break
                except Unavailable:
                    continue
        return await database.run(read)

    def read(session):
        rows = {row.id: (row.outcome, row.completion_tokens) for row in session.scalars(select(Usage))}
        for row in session.scalars(select(Usage)):
            assert known_by(row).total().completion_tokens == row.completion_tokens
        return rows, session.scalar(select(Spending.cost)) or 0.0

    rows, spent = asyncio.run(run())
    assert rows == expected
    assert spent == pytest.approx(sum(tokens for _, tokens in expected.values()) * PRICE)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shipment=shipments(), losses=st.lists(st.booleans(), max_size=8))
def test_any_order_and_repetition_and_lost_answers_make_one_exact_row_a_request(database, shipment, losses):
    check(database, shipment, losses)


@pytest.mark.full
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shipment=shipments(), losses=st.lists(st.booleans(), max_size=8))
def test_so_it_is_on_either_database_many_times(each_database, shipment, losses):
    check(each_database, shipment, losses)


async def test_a_character_that_no_text_may_have_stops_nothing(each_database):
    ship = Ledger(each_database).handlers()[ShipUsage]
    await ship(ShipUsage(ended=(replace(record("a", 1), user="a\0da", groups=("s\0a",)),)), GATEWAY)
    rows = await read_rows(each_database)
    assert (rows["a"].user, rows["a"].groups) == ("ada", ("s\0a",))


async def test_two_control_planes_that_take_the_same_records_make_one_row_each(each_url):
    databases = [Database(each_url) for _ in range(2)]
    all_records = tuple(record(f"r{i}", i, outcome="finished") for i in range(200))
    ships = [Ledger(database).handlers()[ShipUsage] for database in databases]

    async def ship_all(ship, order):
        for place in range(0, 200, 20):
            while True:
                try:
                    await ship(ShipUsage(ended=order[place : place + 20]), GATEWAY)
                    break
                except Unavailable:
                    continue

    await asyncio.gather(ship_all(ships[0], all_records), ship_all(ships[1], all_records[::-1]))
    rows, spent = await databases[0].run(
        lambda session: (len(session.scalars(select(Usage)).all()), session.scalar(select(Spending.cost)))
    )
    assert rows == 200
    assert spent == pytest.approx(sum(range(200)) * PRICE)
    for database in databases:
        database.close()
