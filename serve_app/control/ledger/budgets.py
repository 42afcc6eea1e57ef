"""The spending of keys in a calendar month (UTC), and the keys over a budget.

The transactions that write the ledger's rows also update the sums, so a month's rows are never added up.
Only costs in the currency of a key's budget count against it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from serve_app.control.ledger.tables import Spending
from serve_app.types import UsageRecord

DUST: Final = 1e-9  # rounding errors of sums of floats
STEPS: Final = 2  # gateways learn of spending in this many parts of a budget, each with a snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBudget:
    """The budget of a key for a calendar month."""

    key: str  # name
    budget: float | None = None  # once it is spent, requests are refused
    soft_budget: float | None = None  # once it is spent, answers have a warning
    currency: str = "USD"


KeyBudgets: TypeAlias = Callable[[Session], Iterable[KeyBudget]]  # of keys in force that have a budget
# Name of a key -> why its requests are refused, and what its answers say; "": nothing.
OverBudget: TypeAlias = Mapping[str, tuple[str, str]]


def month_of(seconds: float) -> str:
    """The month of a Unix time, in UTC: 2026-03."""
    return time.strftime("%Y-%m", time.gmtime(seconds))


def spend(session: Session, changes: Iterable[tuple[UsageRecord | None, UsageRecord]]) -> None:
    """Update the sums for changed rows, each given as a request's former state, if any, and its new state."""
    more: dict[tuple[str, str, str], float] = defaultdict(float)
    for before, after in changes:
        if before is not None and before.cost is not None:
            more[_place(before)] -= before.cost
        if after.cost is not None:
            more[_place(after)] += after.cost
    for place in sorted(more):  # always in this order, so that two transactions cannot deadlock
        if more[place]:
            month, key_id, currency = place
            row = session.get(Spending, place)
            if row is None:
                row = Spending(month=month, key_id=key_id, currency=currency, cost=0.0)
                session.add(row)
            row.cost += more[place]


def spent_in(session: Session, month: str) -> Mapping[tuple[str, str], float]:
    """The spending of keys in a month, by the key's name and the currency."""
    wanted = select(Spending.key_id, Spending.currency, Spending.cost).where(Spending.month == month)
    return {(key, currency): cost for key, currency, cost in session.execute(wanted)}


def over_budget(session: Session, budgets: Iterable[KeyBudget], now: float) -> OverBudget:
    """The keys that have reached a budget in the month of `now`, in Unix seconds."""
    month, wanted = month_of(now), list(budgets)
    if not wanted:
        return {}
    spent = spent_in(session, month)
    found: dict[str, tuple[str, str]] = {}
    for each in wanted:
        cost = spent.get((each.key, each.currency), 0.0) + DUST
        hard = _told(each, "budget", each.budget, month) if _reached(cost, each.budget) else ""
        soft = _told(each, "soft budget", each.soft_budget, month) if _reached(cost, each.soft_budget) else ""
        if hard or soft:
            found[each.key] = hard, soft
    return found


def spent(session: Session, budgets: Iterable[KeyBudget], now: float) -> dict[str, float]:
    """The spending of keys with a budget in the month of `now`, by name, in fixed fractions of the budget.

    The amounts are rounded down, so that a snapshot changes with each step and not with each request.
    """
    wanted = {each.key: each for each in budgets if each.budget}
    month = month_of(now)
    rows = session.execute(
        select(Spending.key_id, Spending.currency, Spending.cost).where(
            Spending.month == month, Spending.key_id.in_(wanted)
        )
    )
    found: dict[str, float] = {}
    for key, currency, cost in rows if wanted else ():
        bound = wanted[key].budget or 0.0
        step = bound / STEPS
        if currency == wanted[key].currency and cost >= step:
            found[key] = min(bound, step * int(cost / step))
    return found


def _reached(cost: float, bound: float | None) -> bool:
    return bound is not None and cost >= bound


def _told(budget: KeyBudget, what: str, bound: float | None, month: str) -> str:
    """The message for clients. It does not state the amount spent, so it changes only when a budget is
    crossed."""
    return f"the key's {what} of {bound:.15g} {budget.currency} for {month} (UTC) is spent"


def _place(record: UsageRecord) -> tuple[str, str, str]:
    return month_of(record.started), record.key_id, record.currency or ""
