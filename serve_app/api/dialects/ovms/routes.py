"""OpenVINO Model Server's routes: chat, completions, responses, embeddings, rerank and tokenize."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.paths import BASES, CHAT, OVMS_BASES
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.ovms import operations
from serve_app.api.dialects.ovms.chat import ChatDialect
from serve_app.api.dialects.ovms.completions import CompletionDialect
from serve_app.api.dialects.ovms.embeddings import EmbeddingDialect
from serve_app.api.dialects.ovms.rerank import RerankDialect
from serve_app.api.dialects.ovms.responses.dialect import ResponseDialect
from serve_app.api.dialects.ovms.tokenize import parse_tokenize
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.embed import EmbedRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All of them. The last two exist at the bases of OpenVINO Model Server alone."""
    config = services.config.ovms
    chat = GenerateRoute(ChatDialect(config), services)
    completions = GenerateRoute(CompletionDialect(config), services)
    notes = services.config.pictures == "note"
    responses = GenerateRoute(ResponseDialect(config, notes_pictures=notes), services)
    embeddings = EmbedRoute(EmbeddingDialect(config), services)
    rerank = EmbedRoute(RerankDialect(config), services)
    tokenize = QuestionRoute(parse_tokenize, services, operations.errors(config).render)
    for base in BASES:
        yield _entry(f"{base}{CHAT}", chat, operations.chat(config))
        yield _entry(f"{base}/completions", completions, operations.completions(config))
        yield _entry(f"{base}/responses", responses, operations.responses(config))
        yield _entry(f"{base}/embeddings", embeddings, operations.embeddings(config))
    for base in OVMS_BASES:
        yield _entry(f"{base}/rerank", rerank, operations.rerank(config))
        yield _entry(f"{base}/tokenize", tokenize, operations.tokenize(config))


def _entry(path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, Family.OVMS, operation)
