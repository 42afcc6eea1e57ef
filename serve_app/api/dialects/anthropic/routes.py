"""Anthropic's routes, below /v1 and at the paths where Databricks serves them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from serve_app.api.dialects.anthropic.answers import AnthropicErrorBody, Message, MessageEvent, TokenCount
from serve_app.api.dialects.anthropic.body import MessageBody
from serve_app.api.dialects.anthropic.count_tokens import parse_count
from serve_app.api.dialects.anthropic.dialect import MessageDialect
from serve_app.api.dialects.anthropic.errors import render_error
from serve_app.api.dialects.chat import examples
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import EVENTS, Answer, Body, Errors, asking
from serve_app.api.protocol.family import ANTHROPIC_BASES, Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

TAG: Final = "Anthropic"
ERRORS: Final = Errors(type=AnthropicErrorBody, render=render_error)

MESSAGES: Final = asking(
    TAG,
    ERRORS,
    "Messages",
    "Messages in, the assistant's next message out. Unknown fields are ignored, and named in the header "
    "`X-Ignored-Fields`.",
    Body(type=MessageBody, examples=examples.MESSAGE, required=("max_tokens",)),
    Answer(what="The whole message.", type=Message),
    Answer(what="With `stream`: the events by which it grows.", type=MessageEvent, media=EVENTS),
)
COUNT_TOKENS: Final = asking(
    TAG,
    ERRORS,
    "Count the tokens of a message",
    "How many tokens the model would read. The body is that of the message, without its length.",
    Body(type=MessageBody, examples=examples.MESSAGE_TO_COUNT),
    Answer(what="The count.", type=TokenCount),
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of the protocol."""
    notes = services.config.pictures == "note"
    messages = GenerateRoute(MessageDialect(notes_pictures=notes), services)
    count = QuestionRoute(partial(parse_count, notes_pictures=notes), services)
    for base in ANTHROPIC_BASES:
        for path, app, operation in (
            ("messages", messages, MESSAGES),
            ("messages/count_tokens", count, COUNT_TOKENS),
        ):
            yield Entry("POST", f"{base}/{path}", app, Scope.INFERENCE, Family.ANTHROPIC, operation)
