"""Anthropic's routes, below /v1 and where Databricks has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from serve_app.api.dialects.anthropic.count_tokens import parse_count
from serve_app.api.dialects.anthropic.dialect import MessageDialect
from serve_app.api.dialects.anthropic.operations import COUNT_TOKENS, MESSAGES
from serve_app.api.dialects.family import ANTHROPIC_BASES, Family
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All of them."""
    notes = services.config.pictures == "note"
    messages = GenerateRoute(MessageDialect(notes_pictures=notes), services)
    count = QuestionRoute(partial(parse_count, notes_pictures=notes), services)
    for base in ANTHROPIC_BASES:
        for path, app, operation in (
            ("messages", messages, MESSAGES),
            ("messages/count_tokens", count, COUNT_TOKENS),
        ):
            yield Entry("POST", f"{base}/{path}", app, Scope.INFERENCE, Family.ANTHROPIC, operation)
