"""Sums over the ledger, by any of its fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.orm import Session

from serve_app.control.ledger.tables import Usage
from serve_app.errors import InvalidField, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import ReportUsage, UsageReport, UsageRow

MAX_ROWS: Final = 10_000  # in one report: about 3 MB as JSON

_GROUP: Final = "group"
FIELDS: Final[dict[str, ColumnElement[Any]]] = {
    "endpoint": Usage.endpoint.expression,
    "entity": Usage.entity.expression,
    "key": Usage.key_id.expression,
    "user": Usage.user.expression,
    _GROUP: Usage.groups.expression,
    "kind": Usage.kind.expression,
    "route": Usage.route.expression,
    "outcome": Usage.outcome.expression,
    "day": Usage.day.expression,
    "month": func.substr(Usage.day, literal_column("1"), literal_column("7")),
}
_SUMS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "migrations", "cost")


def allowed(command: ReportUsage, caller: Caller) -> ReportUsage:
    """`command`, limited to the caller's rights. Raises PermissionDenied or InvalidField."""
    unknown = sorted(set(command.by) - set(FIELDS))
    if unknown:
        raise InvalidField("by", f"{unknown[0]!r} is none of {', '.join(FIELDS)}")
    if Scope.MANAGE in caller.scopes:
        return command
    if command.key not in (None, caller.key_id):
        raise PermissionDenied("without the scope manage a key sees its own usage alone")
    return replace(command, key=caller.key_id)


def report(session: Session, command: ReportUsage, untracked: Collection[str] = ()) -> UsageReport:
    """The sums for `command`, sorted by group, leaving out the endpoints in `untracked`.

    Raises InvalidField if there are too many.
    """
    groups: dict[tuple[str, ...], list[Sequence[Any]]] = {}
    num_fields = len(command.by)
    rows = _rows(session, command, untracked)
    for row in rows:
        sums = row[num_fields:]
        for group in _groups(command.by, row):
            groups.setdefault(group, []).append(sums)
    end = None if command.limit is None else command.offset + command.limit
    return UsageReport(
        by=command.by,
        rows=tuple(_sum(groups[group]).shown(group) for group in sorted(groups)[command.offset : end]),
        count=len(groups),
        total=_sum(row[num_fields:] for row in rows).shown(()),
    )


def _rows(session: Session, command: ReportUsage, untracked: Collection[str]) -> list[Any]:
    columns = [FIELDS[name] for name in command.by]
    wanted = select(
        *columns,
        Usage.outcome.label("how"),
        Usage.currency.label("money"),
        func.count().label("requests"),
        *(func.sum(getattr(Usage, name)).label(f"sum_{name}") for name in _SUMS),
        func.sum(Usage.total_s).label("seconds"),
        func.sum(Usage.first_token_s).label("first_seconds"),
        func.count(Usage.first_token_s).label("firsts"),
    ).where(Usage.is_shadow == command.shadow)
    if untracked:
        wanted = wanted.where(Usage.endpoint.not_in(sorted(untracked)))
    if command.since is not None:
        wanted = wanted.where(Usage.started >= command.since)
    if command.until is not None:
        wanted = wanted.where(Usage.started < command.until)
    if command.endpoint is not None:
        wanted = wanted.where(Usage.endpoint == command.endpoint)
    if command.key is not None:
        wanted = wanted.where(Usage.key_id == command.key)
    wanted = wanted.group_by(*columns, Usage.outcome, Usage.currency).limit(MAX_ROWS + 1)
    rows = list(session.execute(wanted))
    if len(rows) > MAX_ROWS:
        raise InvalidField(
            "by", f"gives more than {MAX_ROWS} rows; ask by fewer fields, or for a shorter time"
        )
    return rows


def _groups(by: tuple[str, ...], row: Any) -> Iterable[tuple[str, ...]]:
    """The report's groups in which a row counts: one, or one for each group that the user belongs to."""
    values = [str(value) for value in row[: len(by)]]
    if _GROUP not in by:
        return [tuple(values)]
    place = by.index(_GROUP)
    names = json.loads(values[place]) or [""]
    return [(*values[:place], name, *values[place + 1 :]) for name in names]


@dataclass(slots=True)
class _Total:
    requests: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    migrations: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    first_seconds: float = 0.0
    firsts: int = 0

    def add(self, sums: Sequence[Any]) -> None:
        """`sums`: a row's columns after its group, by place: reading by name takes five times as long."""
        outcome, currency, requests, prompt, cached, completion, migrations, cost, seconds, *first = sums
        self.requests[outcome] = self.requests.get(outcome, 0) + requests
        self.prompt_tokens += int(prompt)
        self.cached_tokens += int(cached)
        self.completion_tokens += int(completion)
        self.migrations += int(migrations)
        if cost is not None and currency is not None:
            self.cost[currency] = self.cost.get(currency, 0.0) + float(cost)
        self.seconds += float(seconds)
        self.first_seconds += float(first[0] or 0.0)
        self.firsts += first[1]

    def shown(self, group: tuple[str, ...]) -> UsageRow:
        requests = sum(self.requests.values())
        return UsageRow(
            group=group,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            migrations=self.migrations,
            cost=self.cost,
            first_token_s=self.first_seconds / self.firsts if self.firsts else None,
            total_s=self.seconds / requests if requests else None,
        )


def _sum(parts: Iterable[Sequence[Any]]) -> _Total:
    total = _Total()
    for sums in parts:
        total.add(sums)
    return total
