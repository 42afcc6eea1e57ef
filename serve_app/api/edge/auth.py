"""Who may call what: pure ASGI, deny by default.

Covered: every path but `OPEN_PATHS` needs a caller, also a path that nobody serves. The path
is `scope["path"]` alone, as the router sees it, and never a URL built from headers. Each route
names the scope that its callers need. Not covered: quotas; the address of a peer behind a proxy,
which `peer_of` finds.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Accounts, PeerOf
from serve_app.api.context import context_of, header, peer_of
from serve_app.errors import PermissionDenied
from serve_app.types import Scope

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})


class Authentication:
    """Finds the caller of every request to a path that is not open."""

    def __init__(self, app: ASGIApp, accounts: Accounts, peer_of: PeerOf = peer_of) -> None:
        self._app = app
        self._accounts = accounts
        self._peer_of = peer_of

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises Unauthenticated or PermissionDenied."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            caller = self._accounts.authenticate(header(scope, b"authorization"), self._peer_of(scope))
            context_of(scope).caller = caller
        await self._app(scope, receive, send)


class Scoped:
    """An ASGI app for callers whose key has the scope `needed`. Metrics count it by the route's template."""

    def __init__(self, app: ASGIApp, needed: Scope | None, route: str, other: Scope | None = None) -> None:
        """`other`: a key with this scope may come in as well."""
        self._app = app
        self.needed = needed  # None: open to everyone
        self.scopes = tuple(scope for scope in (needed, other) if scope is not None)
        self._route = route

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises PermissionDenied."""
        context = context_of(scope)
        context.route = self._route
        held = frozenset() if context.caller is None else context.caller.scopes
        if self.scopes and held.isdisjoint(self.scopes):
            needed = " or ".join(f"'{scope}'" for scope in self.scopes)
            raise PermissionDenied(f"the API key lacks the scope {needed}")
        await self._app(scope, receive, send)
