"""The first page: which models this server has, how they are, and where to try them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.request import console_of
from serve_app.console.templates import render

TITLE: Final = "Home"
PATH: Final = "/console"


def routes() -> Iterator[Route]:
    """The page."""
    yield Route(PATH, _home, methods=["GET"])


async def _home(request: Request) -> Response:
    console = console_of(request)
    listed = await console.api.get("/openai/v1/models")
    return render(request, "home.html", models=listed.body["data"])
