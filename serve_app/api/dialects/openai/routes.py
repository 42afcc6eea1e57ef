"""OpenAI's routes: chat, completions, embeddings and responses.

Its chat below /v1 shares the path with MindIE's: see `dialects/v1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.paths import BASES, CHAT, OVMS_BASES, V1
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.openai import operations
from serve_app.api.dialects.openai.chat import ChatDialect
from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.api.dialects.openai.embeddings import EmbeddingDialect
from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.openai.input_tokens import parse_input_tokens
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.embed import EmbedRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.exchange.kept_route import KeptRoute
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All but chat below /v1."""
    chat = GenerateRoute(ChatDialect(), services)
    completions = GenerateRoute(CompletionDialect(), services)
    embeddings = EmbedRoute(EmbeddingDialect(), services)
    reading = Reading(services.responses is not None, services.config.pictures == "note")
    responses = GenerateRoute(ResponseDialect(render_error, reading), services)
    input_tokens = QuestionRoute(partial(parse_input_tokens, reading=reading), services)
    for base in OVMS_BASES:
        yield _entry(f"{base}{CHAT}", chat, operations.CHAT)
    for base in BASES:
        yield _entry(f"{base}/completions", completions, operations.COMPLETIONS)
        yield _entry(f"{base}/embeddings", embeddings, operations.EMBEDDINGS)
        yield _entry(f"{base}/responses", responses, operations.RESPONSES)
    for each in operations.KEPT_RESPONSES:
        route = KeptRoute(services, each.handle)
        yield _entry(f"{V1}/responses{each.path}", route, each.operation, each.method)
    yield _entry(f"{V1}/responses/input_tokens", input_tokens, operations.INPUT_TOKENS)


def _entry(path: str, app: ASGIApp, operation: Operation, method: str = "POST") -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.OPENAI, operation)
