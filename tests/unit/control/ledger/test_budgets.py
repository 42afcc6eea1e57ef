"""Budgets of keys: a calendar month in UTC, a soft and a hard bound, exact over every correction."""

from dataclasses import replace

import pytest

from serve_app.control.ledger.budgets import KeyBudget
from serve_app.types.control import SettledPart, ShipUsage
from tests.support.ledger import LedgerPlane
from tests.unit.control.ledger.test_reports import DAY_S, MANAGER, MARCH, RECORD

BUDGETS = [
    KeyBudget(key="alice", budget=1.0, soft_budget=0.5),
    KeyBudget(key="bob", budget=1.0, currency="EUR"),
    KeyBudget(key="carol", soft_budget=0.25),
    KeyBudget(key="dave", budget=0.0),
]
HARD = "the key's budget of 1 USD for 2026-03 (UTC) is spent"
SOFT = "the key's soft budget of 0.5 USD for 2026-03 (UTC) is spent"
DAVE = {"dave": ("the key's budget of 0 USD for 2026-03 (UTC) is spent", "")}


class Month:
    """A ledger with these budgets, and a calendar that a test turns."""

    def __init__(self, database):
        self.now = MARCH + DAY_S
        self.changes = 0
        self._database = database
        self.plane = LedgerPlane(
            database, key_budgets=lambda session: BUDGETS, changed=self._change, clock=lambda: self.now
        )

    def _change(self):
        self.changes += 1

    async def ship(self, **command):
        await self.plane.do(ShipUsage(**command), MANAGER)

    async def over(self):
        return dict(await self._database.run(self.plane.ledger.over_budget))


@pytest.fixture
async def month(database):
    found = Month(database)
    await found.ship()
    assert await found.over() == DAVE
    found.changes = 0
    return found


async def test_a_bound_is_reached_at_its_sum_and_told_once(month):
    await month.ship(ended=(replace(RECORD, id="a"),))
    assert await month.over() == DAVE
    assert month.changes == 0
    await month.ship(ended=(replace(RECORD, id="b"),))
    assert await month.over() == DAVE | {"alice": ("", SOFT)}
    assert month.changes == 1
    await month.ship(ended=(replace(RECORD, id="c"),))
    assert month.changes == 1
    await month.ship(ended=(replace(RECORD, id="d"),))
    assert await month.over() == DAVE | {"alice": (HARD, SOFT)}
    assert month.changes == 2


async def test_what_is_shipped_again_is_not_spent_again(month):
    for _ in range(5):
        await month.ship(ended=(replace(RECORD, id="a"),))
    assert await month.over() == DAVE


async def test_a_correction_counts_in_either_direction(month):
    lost = replace(RECORD, id="a", outcome="lost", cost=0.75)
    await month.ship(lost=(lost,))
    assert "alice" in await month.over()
    await month.ship(settled=(SettledPart(record=replace(lost, cost=1.5), part="a-0"),))
    assert (await month.over())["alice"] == (HARD, SOFT)
    await month.ship(ended=(replace(RECORD, id="a", cost=0.25),))  # its gateway lives after all
    assert await month.over() == DAVE


async def test_a_month_begins_with_nothing_spent(month):
    await month.ship(ended=(replace(RECORD, id="a", cost=9.0, started=MARCH - 1.0),))
    assert await month.over() == DAVE
    await month.ship(ended=(replace(RECORD, id="b", cost=9.0),))
    assert (await month.over())["alice"] == (HARD, SOFT)
    month.now = MARCH + 31 * DAY_S
    assert set(await month.over()) == {"dave"}


async def test_other_keys_and_other_currencies_do_not_count(month):
    await month.ship(ended=(replace(RECORD, id="a", key_id="bob", cost=9.0),))
    assert await month.over() == DAVE
    await month.ship(ended=(replace(RECORD, id="b", key_id="bob", cost=9.0, currency="EUR"),))
    assert (await month.over())["bob"] == ("the key's budget of 1 EUR for 2026-03 (UTC) is spent", "")


async def test_sums_of_many_small_costs_reach_the_bound(month):
    await month.ship(ended=tuple(replace(RECORD, id=f"r{i}", cost=0.1) for i in range(10)))
    assert (await month.over())["alice"] == (HARD, SOFT)


async def test_a_soft_bound_alone_refuses_nobody(month):
    await month.ship(ended=(replace(RECORD, id="a", key_id="carol", cost=9.0),))
    assert (await month.over())["carol"] == (
        "",
        "the key's soft budget of 0.25 USD for 2026-03 (UTC) is spent",
    )


async def test_what_is_spent_of_a_budget_is_told_in_halves(month, database):
    async def spent():
        return await database.run(month.plane.ledger.spent)

    assert await spent() == ("2026-03", {})
    for place, told in enumerate((0.0, 0.5, 0.5, 1.0, 1.0)):
        await month.ship(ended=(replace(RECORD, id=f"r{place}"),))  # each costs a quarter
        assert await spent() == ("2026-03", {"alice": told} if told else {})
    month.now = MARCH + 31 * DAY_S
    assert await spent() == ("2026-04", {})
