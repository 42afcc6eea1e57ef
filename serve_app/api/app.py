"""The ASGI app: the table of routes and the layers around it. Wiring only.

Edge (ids, last resort) -> Authentication (deny by default) -> router -> Scoped -> route
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Accounts, Backend, Journal, Quota
from serve_app.api.context import context_of
from serve_app.api.dialects.databricks.serving_endpoints import InvocationRoute, TaskRoute
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie.chat import ChatDialect as MindieChat
from serve_app.api.dialects.openai.chat import ChatDialect
from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.api.dialects.openai.embeddings import EmbeddingDialect
from serve_app.api.dialects.ovms.chat import ChatDialect as OvmsChat
from serve_app.api.dialects.ovms.completions import CompletionDialect as OvmsCompletions
from serve_app.api.dialects.ovms.embeddings import EmbeddingDialect as OvmsEmbeddings
from serve_app.api.dialects.ovms.rerank import RerankDialect
from serve_app.api.dialects.questions.tokens import parse_detokenize, parse_tokenize
from serve_app.api.dialects.questions.watermark import parse_detect
from serve_app.api.dialects.v2.routes import kserve_routes
from serve_app.api.directory import Directory
from serve_app.api.edge.auth import Authentication, PeerOf, Scoped, peer_of
from serve_app.api.edge.middleware import Edge
from serve_app.api.edge.route_guide import RouteGuide, asked
from serve_app.api.exchange.admission import Admission
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.embed import EmbedRoute
from serve_app.api.exchange.generate import GenerateRoute, Services
from serve_app.api.exchange.metering import Meter
from serve_app.api.pages.health import Live, MetricsPage, Ready
from serve_app.api.pages.models import ModelList, ModelPage
from serve_app.config import GatewayConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import RouteNotFound
from serve_app.telemetry import Metrics
from serve_app.types import Scope

logger = logging.getLogger(__name__)

OVMS_STYLE: Final = ("/v3", "/v3/v1")  # OpenVINO Model Server's
OPENAI_STYLE: Final = ("/v1", *OVMS_STYLE)  # OpenAI's and MindIE's, and those made after them


class Entry(NamedTuple):
    """One route. A scope is not optional: None must be written where a route is open."""

    method: str
    path: str
    app: ASGIApp | dict[Family, ASGIApp]  # the same for all protocols, or one for each that has it
    scope: Scope | None


class ByFamily:
    """One path of several protocols."""

    def __init__(self, apps: dict[Family, ASGIApp]) -> None:
        self.apps = apps

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises RouteNotFound for a protocol that has no such route."""
        family = context_of(scope).family
        app = self.apps.get(family)
        if app is None:
            raise RouteNotFound(
                f"{asked(scope['method'], scope['path'])}: the protocol {family} has no such route; "
                f"it is one of {', '.join(sorted(self.apps))}"
            )
        await app(scope, receive, send)


def build_app(
    backend: Backend,
    accounts: Accounts,
    config: GatewayConfig,
    *,
    directory: Directory,
    quota: Quota,
    journal: Journal,
    peer_of: PeerOf = peer_of,
    ids_are_echoed: bool = False,
) -> Starlette:
    """The gateway's HTTP interface.

    `peer_of` tells the client's address where a proxy hides it. `ids_are_echoed`: whatever
    serves the app repeats a request's `X-Request-Id` itself, so a sound one is left to it.
    """
    logger.info("the protocol of /v1 is %s", config.v1_dialect)
    metrics = Metrics(backend.stats)
    services = Services(
        backend,
        directory,
        config,
        metrics,
        Meter(quota, journal, usage_required=config.usage_required),
        Admission(config.max_in_flight),
    )
    metrics.catalogue_refused(lambda: directory.refused)
    metrics.keys_refused(lambda: accounts.refused)
    metrics.endpoints_waiting(lambda: len(directory.waiting))
    metrics.in_flight(lambda: services.admission.in_flight)
    metrics.journal(waiting=lambda: journal.waiting, dropped=lambda: journal.dropped)
    ready = Ready(services, accounts, peer_of)
    chat, completions = ChatDialect(), CompletionDialect()
    chats: dict[Family, ASGIApp] = {
        Family.OPENAI: GenerateRoute(chat, services),
        Family.MINDIE: GenerateRoute(MindieChat(config.mindie), services),
        Family.DATABRICKS: TaskRoute(Task.CHAT, services),
        Family.OVMS: GenerateRoute(OvmsChat(config.ovms), services),
    }
    texts: dict[Family, ASGIApp] = {
        Family.OPENAI: GenerateRoute(completions, services),
        Family.DATABRICKS: TaskRoute(Task.COMPLETIONS, services),
        Family.OVMS: GenerateRoute(OvmsCompletions(config.ovms), services),
    }
    vectors: dict[Family, ASGIApp] = {
        Family.OPENAI: EmbedRoute(EmbeddingDialect(), services),
        Family.OVMS: EmbedRoute(OvmsEmbeddings(config.ovms), services),
        Family.DATABRICKS: TaskRoute(Task.EMBEDDINGS, services),
    }
    ranks: dict[Family, ASGIApp] = {Family.OVMS: EmbedRoute(RerankDialect(config.ovms), services)}
    entries = [
        Entry("GET", "/livez", Live(), None),
        Entry("GET", "/readyz", ready, None),
        Entry("GET", "/health", ready, None),
        Entry("GET", "/metrics", MetricsPage(metrics), Scope.METRICS),
        *(entry for base in OPENAI_STYLE for entry in _openai_style(base, services, chats, texts, vectors)),
        *(Entry("POST", f"{base}/rerank", ranks, Scope.INFERENCE) for base in OVMS_STYLE),
        *(Entry(*each, Scope.INFERENCE) for each in kserve_routes(services, ready)),
        *_databricks(services),
        *_questions(services),
    ]
    app = Starlette(
        routes=list(_routes(entries)),
        middleware=[
            Middleware(
                Edge,
                metrics=metrics,
                guide=RouteGuide((entry.method, entry.path) for entry in entries),
                v1=Family(config.v1_dialect),
                ids_are_echoed=ids_are_echoed,
            ),
            Middleware(Authentication, accounts=accounts, peer_of=peer_of),
        ],
        # Starlette would answer these itself, in its own shape: `Edge` answers everything.
        exception_handlers={404: _reraise, 405: _reraise},
    )
    app.state.services = services  # for other transports of the same gateway
    app.router.redirect_slashes = False  # a redirect would be built from the Host header
    return app


def _openai_style(
    base: str,
    services: Services,
    chats: dict[Family, ASGIApp],
    texts: dict[Family, ASGIApp],
    vectors: dict[Family, ASGIApp],
) -> Iterator[Entry]:
    """The routes that OpenAI's protocol and those made after it have below their `base`."""
    yield from _models(base, services)
    yield Entry("POST", f"{base}/chat/completions", chats, Scope.INFERENCE)
    yield Entry("POST", f"{base}/completions", texts, Scope.INFERENCE)
    yield Entry("POST", f"{base}/embeddings", vectors, Scope.INFERENCE)


def _models(base: str, services: Services) -> Iterator[Entry]:
    """The pages of OpenAI's clients that list models, below the `base` that they are given."""
    directory, backend = services.directory, services.backend
    yield Entry("GET", f"{base}/models", ModelList(directory, backend), Scope.INFERENCE)
    yield Entry("GET", f"{base}/models/{{name:path}}", ModelPage(directory, backend), Scope.INFERENCE)


def _databricks(services: Services) -> Iterator[Entry]:
    """The routes below /serving-endpoints."""
    paths: dict[str, ASGIApp] = {
        "/chat/completions": TaskRoute(Task.CHAT, services),
        "/completions": TaskRoute(Task.COMPLETIONS, services),
        "/embeddings": TaskRoute(Task.EMBEDDINGS, services),
        "/{endpoint:path}/served-models/{entity:path}/invocations": InvocationRoute(services),
        "/{endpoint:path}/invocations": InvocationRoute(services),
    }
    for path, app in paths.items():
        yield Entry("POST", f"/serving-endpoints{path}", {Family.DATABRICKS: app}, Scope.INFERENCE)
    yield from _models("/serving-endpoints", services)


def _questions(services: Services) -> Iterator[Entry]:
    """What can be asked of a model beside answers; the same for all protocols."""
    for base in ("", "/v1"):
        yield Entry("POST", f"{base}/tokenize", QuestionRoute(parse_tokenize, services), Scope.INFERENCE)
        yield Entry("POST", f"{base}/detokenize", QuestionRoute(parse_detokenize, services), Scope.INFERENCE)
    yield Entry("POST", "/v1/watermark/detect", QuestionRoute(parse_detect, services), Scope.INFERENCE)


def _routes(entries: list[Entry]) -> Iterator[Route]:
    for entry in entries:
        app = ByFamily(entry.app) if isinstance(entry.app, dict) else entry.app
        yield Route(entry.path, Scoped(app, entry.scope, entry.path), methods=[entry.method])


async def _reraise(request: Request, error: Exception) -> Response:
    raise error
