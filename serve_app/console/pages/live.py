"""Live figures: charts and tables of rates, latencies and loads, which a script keeps up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.request import console_of
from serve_app.console.templates import render

TITLE: Final = "Live"
SCOPES: Final = frozenset({"metrics", "manage"})
PATH: Final = "/console/live"
API: Final = "/api/2.0/live"

# (figure of the API, what it is, how a value is written); latencies are of the chosen quantile
PICTURES: Final = (
    ("requests_per_s", "Requests per second", "number"),
    ("tokens_per_s", "Tokens per second", "number"),
    ("first_token_s", "Time to first token", "seconds"),
    ("inter_token_s", "Time between tokens", "seconds"),
    ("in_flight", "Running requests", "number"),
    ("errors_per_s", "Errors per second", "number"),
)
PICTURES_OF_APPLICATIONS: Final = (
    ("waiting", "Waiting sequences", "number"),
    ("kv_use", "KV cache use", "share"),
)


def routes() -> Iterator[Route]:
    """The page."""
    yield Route(PATH, _live, methods=["GET"])


async def _live(request: Request) -> Response:
    console = console_of(request)
    seen, problem = await console.api.found(API, since=time.time(), window=2)  # only names, no data points
    names = [] if seen is None else [each["endpoint"] for each in seen["endpoints"]]
    chosen = request.query_params.get("endpoint", "")
    return render(
        request,
        "live.html",
        problem,
        names=names,
        chosen=chosen if chosen in names else "",
        pictures=PICTURES,
        pictures_of_applications=PICTURES_OF_APPLICATIONS,
    )
