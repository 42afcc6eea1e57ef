"""Calls that Databricks' packages make for other purposes than serving: refused with a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NoReturn

from serve_app.api.management.answers import Nothing
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.operation import BASE, management
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import READS_BODY, Answer
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import RouteNotFound, UnsupportedField
from serve_app.types import Scope

_EXTERNAL: Final = management(
    "Calls of other services: not served",
    Answer(what="Never.", type=Nothing),
    what="Databricks keeps credentials of other services and calls them. This server refuses.",
    conditions=(*READS_BODY, RouteNotFound),
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    yield command_entry(services, "POST", f"{BASE}/external-function", _refuse, _EXTERNAL, Scope.INFERENCE)


async def _refuse(asked: Asked[NoBody]) -> NoReturn:
    """Always raises UnsupportedField."""
    raise UnsupportedField(
        "connection_name", "this server calls no other services for its clients; call the service yourself"
    )
