"""CORS: pages of other origins, which the operator lists, may use the API from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, opened to pages of these origins. An empty list opens it to no other origin."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,  # an origin that is listed may ask from outside
        expose_headers=("*",),
    )
