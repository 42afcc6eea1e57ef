"""The routes of the management API, group by group. A request is answered by the first matching route."""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.api.management import elsewhere, live, usage
from serve_app.api.management.endpoints import pages, permissions, requests, settings
from serve_app.api.management.endpoints import routes as endpoints
from serve_app.api.management.keys import routes as keys
from serve_app.api.management.rollouts import routes as rollouts
from serve_app.api.route import Entry
from serve_app.api.services import Services


def routes(services: Services) -> Iterator[Entry]:
    """All routes of the management API."""
    yield from usage.routes(services)
    yield from live.routes(services)
    yield from keys.routes(services)
    yield from endpoints.routes(services)
    yield from settings.routes(services)
    yield from permissions.routes(services)
    yield from pages.routes(services)
    yield from requests.routes(services)
    yield from rollouts.routes(services)
    yield from elsewhere.routes(services)
    yield from endpoints.last_routes(services)
