"""Who may call what: pure ASGI, deny by default.

Covered: every path but `OPEN_PATHS` needs a caller, also a path that nobody serves. The path
is `scope["path"]` alone, as the router sees it, and never a URL built from headers. Each route
names the scope that its callers need, and without keys no page of another site manages the server.
Not covered: quotas; the address of a peer behind a proxy, which `peer_of` finds.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Accounts, PeerOf
from serve_app.api.context import context_of, credentials_of, header, peer_of
from serve_app.errors import PermissionDenied
from serve_app.loopback import is_local_name
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
            caller = self._accounts.authenticate(credentials_of(scope), self._peer_of(scope))
            context_of(scope).caller = caller
        await self._app(scope, receive, send)


class Scoped:
    """An ASGI app for callers whose key has the scope `needed`. Metrics count it by the route's template."""

    def __init__(
        self, app: ASGIApp, needed: Scope | None, route: str, others: tuple[Scope, ...] = ()
    ) -> None:
        """`others`: a key with one of these scopes may come in as well."""
        self._app = app
        self.needed = needed  # None: open to everyone
        self.scopes = () if needed is None else (needed, *others)
        self._route = route

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises PermissionDenied."""
        context = context_of(scope)
        context.route = self._route
        held = frozenset() if context.caller is None else context.caller.scopes
        if self.scopes and held.isdisjoint(self.scopes):
            needed = " or ".join(f"'{scope}'" for scope in self.scopes)
            raise PermissionDenied(f"the API key lacks the scope {needed}")
        if context.caller is not None and context.caller.anonymous and self.needed is Scope.MANAGE:
            _refuse_other_sites(scope)
        await self._app(scope, receive, send)


def _refuse_other_sites(scope: AsgiScope) -> None:
    """Raises PermissionDenied for a page that a browser of this machine got elsewhere.

    Such a page can make the browser send a request, and the browser is on loopback, where nobody needs a key.
    A name that leads to loopback may be anybody's, so `Host` must be an address or localhost.
    """
    origin = header(scope, b"origin")
    site = header(scope, b"sec-fetch-site")
    if origin is None and site in (None, "none", "same-origin"):
        return
    host = header(scope, b"host") or ""
    if origin is not None and origin.partition("://")[2] == host and is_local_name(host):
        return
    raise PermissionDenied("pages of other sites may not manage this server; it needs API keys for that")
