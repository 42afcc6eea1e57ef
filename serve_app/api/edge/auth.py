"""Authentication and scopes: pure ASGI, deny by default.

Covered: every path except `OPEN_PATHS` needs a caller, even an unknown path. The path is `scope["path"]`
alone, as the router sees it, and never a URL built from headers. Each route names the scope that its callers
need. A server without keys answers only under its own names, and pages of other sites cannot manage it. Not
covered: quotas; the address of a peer behind a proxy, which `peer_of` finds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Accounts, PeerOf
from serve_app.api.context import context_of, credentials_of, header, peer_of
from serve_app.api.protocol.family import DISCOVERY
from serve_app.errors import PermissionDenied
from serve_app.loopback import is_local_name
from serve_app.types import Caller, Scope

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health", DISCOVERY})


def caller_of(
    scope: AsgiScope, accounts: Accounts, peer_of: PeerOf, allowed_hosts: Collection[str]
) -> Caller:
    """The caller of a request. `allowed_hosts`: names of the server, for callers without a key.

    If another site's name is made to resolve to this server (DNS rebinding), the browser treats the site's
    page as the server's own, so the page could read every answer. Browsers always send `Host`; other clients
    may leave it out. Raises Unauthenticated or PermissionDenied.
    """
    caller = accounts.authenticate(credentials_of(scope), peer_of(scope))
    host = header(scope, b"host")
    if caller.anonymous and host and not is_local_name(host, allowed_hosts):
        raise PermissionDenied(
            "without API keys this server is asked by an address such as 127.0.0.1, by a name without a dot "
            "such as localhost, or by a name in allowed_hosts of the gateway; the header Host has another"
        )
    return caller


class Authentication:
    """Finds the caller of every request to a path that is not open."""

    def __init__(
        self,
        app: ASGIApp,
        accounts: Accounts,
        peer_of: PeerOf = peer_of,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        """`allowed_hosts`: names of the server, for callers without a key."""
        self._app = app
        self._accounts = accounts
        self._peer_of = peer_of
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises Unauthenticated or PermissionDenied."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            caller = caller_of(scope, self._accounts, self._peer_of, self._allowed_hosts)
            context_of(scope).caller = caller
        await self._app(scope, receive, send)


class Scoped:
    """An ASGI app that is open only to callers whose key has the scope `needed`. Metrics count its requests
    by the route's template."""

    def __init__(
        self, app: ASGIApp, needed: Scope | None, route: str, others: tuple[Scope, ...] = ()
    ) -> None:
        """`others`: a key with one of these scopes is admitted as well."""
        self._app = app
        self.needed = needed  # None: open to everyone
        self.scopes = () if needed is None else tuple(dict.fromkeys((needed, *others)))
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
    """Raises PermissionDenied for a request from another site's page in a browser on this machine.

    Such a page can make the browser send a request over loopback, where no key is needed.
    `Host` was checked before.
    """
    origin = header(scope, b"origin")
    site = header(scope, b"sec-fetch-site")
    if origin is None and site in (None, "none", "same-origin"):
        return
    host = header(scope, b"host") or ""
    if origin is not None and origin.partition("://")[2] == host:
        return
    raise PermissionDenied("pages of other sites may not manage this server; it needs API keys for that")
