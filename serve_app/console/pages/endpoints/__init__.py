"""Endpoints: their list, a form that creates one, and the pages of each endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.routing import Route

from serve_app.console.pages.endpoints import changes, creation, listing, one
from serve_app.console.pages.endpoints.paths import LIST

TITLE: Final = "Endpoints"
SCOPES: Final = frozenset({"inference", "manage"})
PATH: Final = LIST


def routes() -> Iterator[Route]:
    """A name may contain slashes, so the tab is in the query, and forms have paths of their own."""
    yield from listing.routes()
    yield from creation.routes()
    yield from changes.routes()
    yield from one.routes()
