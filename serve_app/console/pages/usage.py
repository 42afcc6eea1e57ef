"""Usage: sums over the ledger for a period, as totals, as a picture of days, as a table and as a CSV file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.forms import Form
from serve_app.console.public_api import ApiError
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views.day_chart import day_chart
from serve_app.console.views.usage import usage_row, usage_rows
from serve_app.console.views.usage_query import FIELDS, PERIODS, chosen_in

TITLE: Final = "Usage"
SCOPES: Final = frozenset({"inference", "manage"})
PATH: Final = "/console/usage"
API: Final = "/api/2.0/usage"
MOST_ROWS: Final = 200  # of one page of the table; the CSV has all
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
    return render(
        request,
        "usage/usage.html",
        HTTPStatus.OK if problem is None else problem.status,
        chosen=chosen,
        is_chosen="by" in params,
        periods=PERIODS,
        fields=FIELDS,
        by=table["by"],
        rows=usage_rows(table),
        count=table["count"],
        most=MOST_ROWS,
        total=usage_row(table["total"]),
        chart=day_chart(days, chosen.first_day(now), now.strftime("%Y-%m-%d")),
        csv=f"/console/api{API}?{urlencode({**chosen.query(now), 'format': 'csv'})}",
        problem=problem,
    )
