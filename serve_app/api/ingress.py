"""FastAPI as the ingress: it holds and describes the table of routes, but requests bypass it.

No code of FastAPI runs for a request. Bodies stay raw until a dialect reads them strictly, with a size limit.
Errors of every kind are rendered in the request's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.edge.auth import Scoped
from serve_app.api.edge.version import VERSION
from serve_app.api.route import Path


class RawRoute(APIRoute):
    """A route that is answered by an ASGI app of ours."""

    def __init__(self, path: Path) -> None:
        vars(self).update(vars(_described(path.template, path.method)))
        self.methods = {"GET", "HEAD"} if path.method == "GET" else {path.method}
        self.app = Scoped(path.app, path.scope, path.template, path.other_scopes)
        self.entries = path.entries

    # Starlette's own: FastAPI's look for routers that include one another, once a route and request.
    matches = Route.matches
    handle = Route.handle


class Ingress(FastAPI):
    """The app of a gateway."""

    def __init__(
        self,
        paths: Iterable[Path],
        layers: Callable[[ASGIApp], ASGIApp],
        document: Callable[[], dict[str, Any]],
    ) -> None:
        """`layers` wraps the router in the layers of every request; `document` describes the paths."""
        super().__init__(
            title="serve-app",
            version=VERSION,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
        )
        self._document = document
        self.router.routes.extend(RawRoute(path) for path in paths)
        # A redirect to the path with a slash, or without, would be built from the Host header.
        self._layers = layers(Router(self.routes, redirect_slashes=False))

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, which FastAPI cannot write, since the routes read their bodies themselves."""
        return self._document()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # the router then raises where it would answer in a shape of its own
        await self._layers(scope, receive, send)


@cache
def _described(template: str, method: str) -> APIRoute:
    """FastAPI's analysis of a route, which is the slowest part of making a gateway's app."""
    return APIRoute(template, _answered_by_app, methods=[method], response_model=None)


async def _answered_by_app() -> None:
    """A placeholder for the function that FastAPI describes; no request calls it."""
