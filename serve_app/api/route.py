"""The table of routes: one entry per path and protocol, one route per path.

Depends neither on the protocols nor on what the routes' apps do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.context import context_of
from serve_app.api.edge.route_guide import asked
from serve_app.api.openapi.operation import Operation
from serve_app.api.protocol.family import Family
from serve_app.errors import RouteNotFound
from serve_app.types import Scope


@dataclass(frozen=True, slots=True)
class Entry:
    """The app that answers one path, for all protocols or for one of them."""

    method: str
    path: str  # Starlette's template
    app: ASGIApp
    scope: Scope | None  # that a key needs; None: the path is open to everyone
    family: Family | None = None  # the only protocol of this entry; None: the same for all
    operation: Operation | None = None  # describes the entry in the OpenAPI document
    other_scopes: tuple[Scope, ...] = ()  # a key with one of these may come in as well


class ByFamily:
    """One path that several protocols share."""

    def __init__(self, apps: Mapping[Family, ASGIApp]) -> None:
        self.apps = apps

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises RouteNotFound if the request's protocol has no such route."""
        family = context_of(scope).family
        app = self.apps.get(family)
        if app is None:
            raise RouteNotFound(
                f"{asked(scope['method'], scope['path'])}: the protocol {family} has no such route; "
                f"it is one of {', '.join(sorted(self.apps))}"
            )
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Path:
    """All entries of one method and path, in the order of the table."""

    method: str
    template: str
    entries: tuple[Entry, ...]

    @property
    def scope(self) -> Scope | None:
        """The scope that a key needs, whichever protocol the request uses."""
        return self.entries[0].scope

    @property
    def other_scopes(self) -> tuple[Scope, ...]:
        """Other scopes: a key with any of them is admitted too."""
        return self.entries[0].other_scopes

    @property
    def app(self) -> ASGIApp:
        """The app for the path; it chooses by the request's protocol if protocols differ."""
        by_family = {entry.family: entry.app for entry in self.entries if entry.family is not None}
        return ByFamily(by_family) if by_family else self.entries[0].app


def paths_of(entries: Iterable[Entry]) -> list[Path]:
    """The paths of a table, in the order of first appearance: the first path that matches is used.

    Raises ValueError if two entries for a path answer the same requests or require different scopes.
    """
    table: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        table.setdefault((entry.method, entry.path), []).append(entry)
    paths = [Path(method, template, tuple(same)) for (method, template), same in table.items()]
    for path in paths:
        _check(path)
    return paths


def _check(path: Path) -> None:
    families = [entry.family for entry in path.entries]
    if len(set(families)) < len(families) or (None in families and len(families) > 1):
        raise ValueError(f"{path.method} {path.template}: two entries answer the same requests")
    if len({(entry.scope, entry.other_scopes) for entry in path.entries}) > 1:
        raise ValueError(f"{path.method} {path.template}: the entries need different scopes")
