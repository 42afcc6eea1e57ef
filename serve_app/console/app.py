"""The console as a layer around the gateway's app: it answers paths below `/console`, and passes on others.

A browser that opens the server's root address is redirected to the console.

Deals only with paths. The code and templates of pages are loaded at the first request for a page, so a
gateway whose console is not used starts as fast, and takes as little memory, as one without a console.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.config import ConsoleConfig
from serve_app.console.secret import check_secret

if TYPE_CHECKING:
    from serve_app.console.site import Site

PREFIX: Final = "/console"


class Console:
    """An ASGI app: the console at its paths, `inner` at all others."""

    def __init__(
        self,
        inner: ASGIApp,
        config: ConsoleConfig,
        peer_of: Callable[[Scope], str | None],
        environ: Mapping[str, str] = os.environ,
        *,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        """`inner` is the public API, with its authentication and limits. `allowed_hosts`: names of this
        server that requests without a key may use, besides addresses and names without a dot.

        Raises ValueError if the secret in the environment is too short.
        """
        check_secret(environ)
        self._inner = inner
        self._config = config
        self._peer_of = peer_of
        self._allowed_hosts = allowed_hosts
        self._environ = environ
        self._site: Site | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/" and _is_browser(scope):
            await RedirectResponse(PREFIX)(scope, receive, send)
            return
        if scope["type"] != "http" or not _is_ours(scope["path"]):
            await self._inner(scope, receive, send)
            return
        site = self._site or await self._load()
        await site(scope, receive, send)

    async def _load(self) -> Site:
        """Build the site in a thread, so that answers in progress do not wait for its templates to load."""
        async with self._loading:
            if self._site is None:
                self._site = await asyncio.to_thread(self._make)
            return self._site

    def _make(self) -> Site:
        from serve_app.console.site import Site

        return Site(self._inner, self._config, self._peer_of, self._environ, self._allowed_hosts)


def _is_browser(scope: Scope) -> bool:
    accepts = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return scope["method"] in ("GET", "HEAD") and b"text/html" in accepts


def _is_ours(path: str) -> bool:
    return path.startswith(PREFIX) and path[len(PREFIX) :][:1] in ("", "/")
