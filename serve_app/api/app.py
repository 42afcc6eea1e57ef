"""The ASGI app: the table of routes and the layers around it. Wiring only.

Console (its own paths) -> CORS (where origins are listed)
-> Edge (ids, last resort) -> Authentication (deny by default) -> router -> Scoped -> route
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from serve_app.api.describe import describe
from serve_app.api.dialects.anthropic import routes as anthropic
from serve_app.api.dialects.databricks import routes as databricks
from serve_app.api.dialects.extensions import routes as extensions
from serve_app.api.dialects.mindie import routes as mindie
from serve_app.api.dialects.mindie import shared_with_openai, shared_with_triton
from serve_app.api.dialects.openai import routes as openai
from serve_app.api.dialects.ovms import routes as ovms
from serve_app.api.dialects.triton import routes as triton
from serve_app.api.edge.auth import Authentication
from serve_app.api.edge.cors import with_cors
from serve_app.api.edge.middleware import Edge
from serve_app.api.edge.route_guide import RouteGuide
from serve_app.api.error_renderers import RENDERERS
from serve_app.api.ingress import Ingress
from serve_app.api.management import routes as management
from serve_app.api.openapi import routes as docs
from serve_app.api.pages import routes as pages
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry, paths_of
from serve_app.api.services import Services
from serve_app.console.app import Console

logger = logging.getLogger(__name__)


def entries(services: Services) -> list[Entry]:
    """The table of routes. The first match is used, so Triton's `/v2/models/stats` must come before MindIE's
    page about a model, which matches any name."""
    return [
        *pages.routes(services),
        *shared_with_openai.routes(services),
        *openai.routes(services),
        *anthropic.routes(services),
        *triton.routes(services),
        *mindie.routes(services),
        *shared_with_triton.routes(services),
        *databricks.routes(services),
        *management.routes(services),
        *ovms.routes(services),
        *extensions.routes(services),
    ]


def build_app(services: Services, *, ids_are_echoed: bool = False) -> FastAPI:
    """The gateway's HTTP interface.

    `ids_are_echoed`: whether the HTTP server repeats a request's `X-Request-Id` itself, so that the app need
    not.
    """
    config = services.config
    logger.info("the protocol of /v1 is %s", config.v1_dialect)

    @cache
    def document() -> dict[str, Any]:
        return describe(paths, config)

    paths = paths_of([*entries(services), *docs.routes(document)])

    def layers(router: ASGIApp) -> ASGIApp:
        app: ASGIApp = Edge(
            Authentication(router, services.accounts, services.peer_of, config.allowed_hosts),
            services.metrics,
            RouteGuide((path.method, path.template) for path in paths),
            RENDERERS,
            v1=Family(config.v1_dialect),
            ids_are_echoed=ids_are_echoed,
        )
        app = with_cors(app, config.cors_origins)
        if config.console.enabled:
            app = Console(app, config.console, services.peer_of, allowed_hosts=config.allowed_hosts)
        return app

    return Ingress(paths, layers, document)
