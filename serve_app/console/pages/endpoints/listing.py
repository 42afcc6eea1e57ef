"""The list of endpoints that the caller may see."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.pages.endpoints.paths import API, LIST, notice_of
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views.endpoint_list import SORTS, ListQuery, endpoint_page
from serve_app.console.views.endpoints import endpoint_views


def routes() -> Iterator[Route]:
    yield Route(LIST, _list, methods=["GET"])


async def _list(request: Request) -> Response:
    """The page, or only its table for `part=table`, which the page polls while an endpoint starts."""
    answer, problem = await console_of(request).api.found(API)
    endpoints = endpoint_views(answer or {})
    is_part = request.query_params.get("part") == "table"
    return render(
        request,
        "endpoints/_table.html" if is_part else "endpoints/list.html",
        problem,
        page=endpoint_page(endpoints, ListQuery.of(request.query_params)),
        total=len(endpoints),
        columns={name: title for name, (title, _) in SORTS.items()},
        notice=notice_of(request),
    )
