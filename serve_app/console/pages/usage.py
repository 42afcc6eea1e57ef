"""Usage: sums over the ledger for a period, as totals, a chart by day, a table and a CSV file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.forms import Form
from serve_app.console.public_api import ApiError, PublicApi
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views.day_chart import cost_chart, token_chart
from serve_app.console.views.usage import usage_row, usage_rows
from serve_app.console.views.usage_query import FIELDS, PERIODS, Chosen, chosen_in

TITLE: Final = "Usage"
SCOPES: Final = frozenset({"inference", "manage"})
PATH: Final = "/console/usage"
API: Final = "/api/2.0/usage"
MOST_ROWS: Final = 200  # on one page of the table; the CSV file has all rows
_NOTHING: Final[dict[str, Any]] = {"by": [], "count": 0, "total": {}, "rows": []}


def routes() -> Iterator[Route]:
    yield Route(PATH, _show, methods=["GET"])


async def _show(request: Request) -> Response:
    params = request.query_params
    chosen = chosen_in(Form({name: params.getlist(name) for name in params}))
    now = datetime.now(UTC)
    api = console_of(request).api
    problem = None
    table, days = _NOTHING, _NOTHING
    try:
        answers = await asyncio.gather(
            api.get(API, **chosen.query(now), limit=MOST_ROWS, offset=chosen.offset),
            api.get(API, **chosen.query(now, ("day",))),
        )
        table, days = (answer.body for answer in answers)
    except ApiError as error:
        problem = error
    costs, *names = await asyncio.gather(
        _report(api, chosen.query(now, ("day", "key"))),
        *(_names(api, chosen, now, field) for field in ("endpoint", "key")),
    )
    span = chosen.first_day(now), now.strftime("%Y-%m-%d")
    return render(
        request,
        "usage/usage.html",
        problem,
        chosen=chosen,
        is_chosen="by" in params,
        periods=PERIODS,
        fields=FIELDS,
        by=table["by"],
        rows=usage_rows(table),
        count=table["count"],
        most=MOST_ROWS,
        total=usage_row(table["total"]),
        names=dict(zip(("endpoint", "key"), names, strict=True)),
        charts=[chart for chart in (token_chart(days, *span), cost_chart(costs, *span)) if chart],
        csv=f"/console/api{API}?{urlencode({**chosen.query(now), 'format': 'csv'})}",
    )


async def _report(api: PublicApi, query: Mapping[str, str]) -> dict[str, Any]:
    """A report; empty if the API refuses, as it does for too many sums."""
    found, _ = await api.found(API, **query)
    return found or _NOTHING


async def _names(api: PublicApi, chosen: Chosen, now: datetime, field: str) -> list[str]:
    """The endpoints or keys to choose from: those with requests in the period, and the chosen one."""
    report = await _report(api, replace(chosen, endpoint="", key="").query(now, (field,)))
    found = {row[field] for row in report["rows"]}
    return sorted(found | ({getattr(chosen, field)} - {""}))
