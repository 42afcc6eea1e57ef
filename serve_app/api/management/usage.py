"""Sums over the usage ledger, as JSON or CSV: `GET /api/2.0/usage`.

Databricks has no such route. A key with the scope `manage` sees all usage; any other key sees only its own.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NotRequired, cast

from typing_extensions import TypedDict

from serve_app.api.edge.query import flag, integer
from serve_app.api.management.command_route import Asked, Page, command_entry
from serve_app.api.management.operation import (
    BASE,
    COMMANDS,
    check_query,
    management,
    query_parameter,
)
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import Answer, Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import InvalidField, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import ReportUsage, UsageReport, UsageRow

PATH: Final = f"{BASE}/usage"
CSV: Final = "text/csv"
OUTCOMES: Final = ("finished", "failed", "aborted", "lost")
_FORMATS: Final = ("json", "csv")
LIMITS: Final = (1, 10_000)  # no report has more sums
CSV_ROWS: Final = 500  # of one part: other answers go on between two parts
_TIME: Final = "must be an ISO date or time in UTC, such as 2026-03-01, or seconds since 1970"
_LATEST_S: Final = 253_402_300_800.0  # the year 10000


class UsageRowJson(TypedDict):
    """The sum over requests that agree in the fields of `by`; these fields are the row's first members."""

    endpoint: NotRequired[str]
    entity: NotRequired[str]
    key: NotRequired[str]
    user: NotRequired[str]
    group: NotRequired[str]
    kind: NotRequired[str]
    route: NotRequired[str]
    outcome: NotRequired[str]
    day: NotRequired[str]
    month: NotRequired[str]
    requests: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    migrations: int
    cost: dict[str, float]
    first_token_s: NotRequired[float]
    total_s: NotRequired[float]


class UsageJson(TypedDict):
    """The sums, in the order of their groups. `count` is the number of all sums, even beyond `limit`."""

    by: list[str]
    count: int
    total: UsageRowJson
    rows: list[UsageRowJson]


OPERATION: Final[Operation] = replace(
    management(
        "Usage and costs",
        Answer(what="The sums.", type=UsageJson),
        what="Sums over all admitted requests. A key without the scope `manage` sees its own alone.",
        conditions=(*COMMANDS, PermissionDenied),
    ),
    answers=(
        Answer(what="The sums.", type=UsageJson),
        Answer(what="The sums as a table, where `format` is csv.", type=str, media=CSV),
    ),
    parameters=(
        query_parameter(
            "by",
            "Fields, with commas: endpoint, entity, key, user, group, kind, route, outcome, day, month.",
            example="key,month",
        ),
        query_parameter(
            "since", "Requests that began then or later: an ISO time, or seconds.", example="2026-03-01"
        ),
        query_parameter("until", "Requests that began earlier.", example="2026-04-01"),
        query_parameter("endpoint", "Of this endpoint alone."),
        query_parameter("key", "Of this key alone."),
        query_parameter("shadow", "Of shadow copies instead of requests.", bool),
        query_parameter(
            "limit", f"Sums at most: {LIMITS[0]} to {LIMITS[1]:,}; all unless given.", int, example=100
        ),
        query_parameter("offset", f"Sums that are left out before the first: 0 to {LIMITS[1]:,}.", int),
        query_parameter("format", "The form of the answer.", Literal["json", "csv"]),
    ),
)


def routes(services: Services) -> Iterator[Entry]:
    yield command_entry(services, "GET", PATH, _report, OPERATION, Scope.INFERENCE, Scope.MANAGE)


async def _report(asked: Asked[NoBody]) -> UsageJson | Page:
    query = asked.query
    check_query(query, OPERATION)
    form = query.get("format", "json")
    if form not in _FORMATS:
        raise InvalidField("format", f"must be one of {', '.join(_FORMATS)}")
    command = ReportUsage(
        since=_time(query, "since"),
        until=_time(query, "until"),
        endpoint=query.get("endpoint"),
        key=query.get("key", _only_key(asked.caller)),
        shadow=flag(query, "shadow"),
        limit=integer(query, "limit", *LIMITS),
        offset=integer(query, "offset", 0, LIMITS[1]) or 0,
        **({"by": _fields(query["by"])} if "by" in query else {}),
    )
    report = await asked.do(command)
    if form == "csv":
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return Page(parts=_csv(report), media=f"{CSV}; charset=utf-8", headers=headers)
    return {
        "by": list(report.by),
        "count": report.count,
        "total": _row((), report.total),
        "rows": [_row(report.by, row) for row in report.rows],
    }


def _only_key(caller: Caller) -> str | None:
    """The key whose usage a caller sees by default; None: all keys, for an administrator."""
    sees_all = Scope.MANAGE in caller.scopes and not caller.endpoints
    return None if sees_all else caller.key_id


def _fields(text: str) -> tuple[str, ...]:
    """The fields to group by, without duplicates. An empty text names no fields, so everything is summed
    up."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _time(query: Any, name: str) -> float | None:
    """Unix seconds. Raises InvalidField."""
    text = query.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
            seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise InvalidField(name, _TIME) from None
    if not math.isfinite(seconds) or not 0 <= seconds <= _LATEST_S:
        raise InvalidField(name, _TIME)
    return seconds


def _row(by: Sequence[str], row: UsageRow) -> UsageRowJson:
    sums: UsageRowJson = {
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        "migrations": row.migrations,
        "cost": row.cost,
    }
    if row.first_token_s is not None:
        sums["first_token_s"] = row.first_token_s
    if row.total_s is not None:
        sums["total_s"] = row.total_s
    group = cast("UsageRowJson", dict(zip(by, row.group, strict=True)))
    return {**group, **sums}


def _csv(report: UsageReport) -> Iterator[bytes]:
    """The CSV, part by part, with a column for each currency in the report and for each outcome."""
    currencies = sorted({currency for row in report.rows for currency in row.cost})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    tokens = ("prompt_tokens", "cached_tokens", "completion_tokens", "migrations")
    costs = (f"cost_{currency}" for currency in currencies)
    writer.writerow([*report.by, "requests", *OUTCOMES, *tokens, *costs, "first_token_s", "total_s"])
    for place, row in enumerate(report.rows, 1):
        writer.writerow(
            [
                *row.group,
                sum(row.requests.values()),
                *(row.requests.get(outcome, 0) for outcome in OUTCOMES),
                *(getattr(row, name) for name in tokens),
                *(row.cost.get(currency, "") for currency in currencies),
                "" if row.first_token_s is None else row.first_token_s,
                "" if row.total_s is None else row.total_s,
            ]
        )
        if place % CSV_ROWS == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()
