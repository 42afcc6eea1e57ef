"""The usage ledger: takes records from gateways, keeps the spending of keys, and makes reports.

Records may be shipped more than once and in any order; the result is the same.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, astuple
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from serve_app.accounts.merge import Known, Used, ended, lost, merge, settled
from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.ledger import budgets, reports
from serve_app.control.ledger.budgets import KeyBudgets, OverBudget
from serve_app.control.ledger.tables import Usage
from serve_app.errors import PermissionDenied
from serve_app.types import Caller, Scope, UsageRecord
from serve_app.types.control import ReportUsage, Shipped, ShipUsage, UsageReport

ROWS_AT_ONCE: Final = 500  # of one statement
LOOK_S: Final = 30.0  # between two checks of the calendar
_OWN: Final = ""  # the part from the journal of the request's own gateway

# Columns that have the name and the value of a record's field.
_SAME: Final = (
    *("id", "key_id", "user", "endpoint", "entity", "kind", "route", "started", "outcome", "status"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "discarded_tokens"),
    *("first_token_s", "queue_s", "total_s", "migrations", "cost", "currency"),
)


class Ledger:
    """All usage, in the database."""

    def __init__(
        self,
        database: Database,
        *,
        key_budgets: KeyBudgets = lambda session: (),
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        untracked: Callable[[Session], Collection[str]] = lambda session: (),
    ) -> None:
        """`changed` is called when the result of `over_budget` may have changed.

        `untracked`: returns the endpoints that reports leave out.
        """
        self._database = database
        self._key_budgets = key_budgets
        self._changed = changed
        self._clock = clock
        self._untracked = untracked
        # The part for snapshots, as of the last call of `changed`.
        self._reported: tuple[OverBudget, tuple[str, dict[str, float]]] = ({}, ("", {}))

    def handlers(self) -> Handlers:
        return {ShipUsage: self._ship, ReportUsage: self._report}

    def over_budget(self, session: Session) -> OverBudget:
        """The keys that have reached a budget in this month. A part of the snapshot."""
        return budgets.over_budget(session, self._key_budgets(session), self._clock())

    def spent(self, session: Session) -> tuple[str, dict[str, float]]:
        """The month, and the spending of keys in it. A part of the snapshot."""
        now = self._clock()
        return budgets.month_of(now), budgets.spent(session, self._key_budgets(session), now)

    async def run(self) -> None:
        """Start each month with fresh budgets, until cancelled."""
        month = budgets.month_of(self._clock())
        while True:
            await asyncio.sleep(LOOK_S)
            now = budgets.month_of(self._clock())
            if now != month:
                month = now
                self._changed()

    async def _ship(self, command: ShipUsage, caller: Caller) -> Shipped:
        if Scope.MANAGE not in caller.scopes:
            raise PermissionDenied("only gateways ship usage")
        known = _joined(command)

        def write(session: Session) -> tuple[OverBudget, tuple[str, dict[str, float]]]:
            for place in range(0, len(known), ROWS_AT_ONCE):
                _write(session, known[place : place + ROWS_AT_ONCE])
            return self.over_budget(session), self.spent(session)

        spending = await self._database.run(write)
        if spending != self._reported:
            self._reported = spending
            self._changed()
        return Shipped(count=len(known))

    async def _report(self, command: ReportUsage, caller: Caller) -> UsageReport:
        asked = reports.allowed(command, caller)
        return await self._database.run(
            lambda session: reports.report(session, asked, self._untracked(session))
        )


def _joined(command: ShipUsage) -> Sequence[Known]:
    """The command's records grouped by request, in the order of the requests' ids."""
    found: dict[str, Known] = {}
    for known in _each(command):
        id = known.record.id
        found[id] = known if id not in found else merge(found[id], known)
    return [found[id] for id in sorted(found)]


def _each(command: ShipUsage) -> Iterable[Known]:
    yield from map(ended, command.ended)
    yield from map(lost, command.lost)
    for part in command.settled:
        yield settled(part.record, part.part)


def _write(session: Session, all_known: Sequence[Known]) -> None:
    ids = [known.record.id for known in all_known]
    rows = {row.id: known_by(row) for row in session.scalars(select(Usage).where(Usage.id.in_(ids)))}
    new: list[dict[str, Any]] = []
    other: list[dict[str, Any]] = []
    changes = []
    for known in all_known:
        before = rows.get(known.record.id)
        after = known if before is None else merge(before, known)
        if after == before:
            continue
        (new if before is None else other).append(values_of(after))
        changes.append((None if before is None else before.total(), after.total()))
    session.expunge_all()  # rows are written below as plain values
    if new:
        session.execute(insert(Usage), new)
    if other:
        session.execute(update(Usage), other)
    budgets.spend(session, changes)


def values_of(known: Known) -> dict[str, Any]:
    """The columns of the row that stores `known`."""
    total = known.total()
    return {
        **{name: _storable(getattr(total, name)) for name in _SAME},
        "is_ended": known.is_ended,
        "groups": json.dumps(total.groups),
        "failed_over": ",".join(total.failed_over),
        "day": time.strftime("%Y-%m-%d", time.gmtime(total.started)),
        "is_shadow": total.shadow,
        "parts": None if known.is_ended else _written_parts(known),
    }


def known_by(row: Usage) -> Known:
    """The facts in `row`; the reverse of `values_of`."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in _SAME}
    fields |= {"groups": tuple(json.loads(row.groups)), "shadow": row.is_shadow}
    fields["failed_over"] = tuple(row.failed_over.split(",")) if row.failed_over else ()
    parts = {prompt: (moves, Used(*used)) for prompt, (moves, *used) in (row.parts or {}).items()}
    if row.is_ended:
        return Known(UsageRecord(**fields), is_ended=True)
    _, own = parts.pop(_OWN)
    return Known(UsageRecord(**fields | asdict(own)), parts=parts)


def _storable(value: Any) -> Any:
    """Remove NUL, which PostgreSQL does not accept in texts."""
    return value.replace("\0", "") if isinstance(value, str) else value


def _written_parts(known: Known) -> dict[str, list[Any]]:
    parts = {prompt: [moves, *astuple(used)] for prompt, (moves, used) in known.parts.items()}
    return {_OWN: [0, *astuple(Used.of(known.record))], **parts}
