"""OpenAI's routes: chat, completions, embeddings and responses.

Chat below /v1 shares its path with MindIE's: see `mindie/shared_with_openai`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.chat.answers import EmbeddingList
from serve_app.api.dialects.chat.paths import BASES, CHAT, OVMS_BASES, V1
from serve_app.api.dialects.openai import answers
from serve_app.api.dialects.openai.chat import ChatBody, ChatDialect
from serve_app.api.dialects.openai.completions import CompletionBody, CompletionDialect
from serve_app.api.dialects.openai.embeddings import EmbeddingBody, EmbeddingDialect
from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.openai.input_tokens import parse_input_tokens
from serve_app.api.dialects.responses.body import Reading, ResponseBody
from serve_app.api.dialects.responses.dialect import ResponseDialect, response_operation
from serve_app.api.dialects.responses.kept_routes import kept_routes
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.embed import EmbedRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import Answer, Body, Errors, Operation, asking, streamed
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

TAG: Final = "OpenAI"
ERRORS: Final = Errors(type=answers.ErrorBody, render=render_error)

_UNKNOWN: Final = "Unknown fields are ignored, and named in the header `X-Ignored-Fields`."

_asking: Final = partial(asking, TAG, ERRORS)

CHAT_OPERATION: Final = _asking(
    "Chat",
    f"Messages in, the assistant's next message out. {_UNKNOWN}",
    Body(type=ChatBody, examples=examples.CHAT),
    *streamed(answers.ChatCompletion, answers.ChatChunk | answers.ErrorBody),
)
COMPLETIONS: Final = _asking(
    "Completions",
    f"Prompts in, their continuations out. {_UNKNOWN}",
    Body(type=CompletionBody, examples=examples.COMPLETION),
    *streamed(answers.Completion, answers.CompletionChunk | answers.ErrorBody),
)
EMBEDDINGS: Final = _asking(
    "Embeddings",
    f"Texts in, a vector each out. {_UNKNOWN}",
    Body(type=EmbeddingBody, examples=examples.EMBEDDING),
    Answer(what="The vectors.", type=EmbeddingList),
)
RESPONSES: Final = response_operation(TAG, ERRORS)
INPUT_TOKENS: Final = _asking(
    "Count the input of a response",
    "How many tokens the model would read. The body is that of the response.",
    Body(type=ResponseBody, examples=examples.RESPONSE),
    Answer(what="The count.", type=answers.InputTokenCount),
)


def routes(services: Services) -> Iterator[Entry]:
    """All of OpenAI's routes except chat below /v1."""
    chat = GenerateRoute(ChatDialect(), services)
    completions = GenerateRoute(CompletionDialect(), services)
    embeddings = EmbedRoute(EmbeddingDialect(), services)
    reading = Reading(services.responses is not None, services.config.pictures == "note")
    responses = GenerateRoute(ResponseDialect(render_error, reading), services)
    input_tokens = QuestionRoute(partial(parse_input_tokens, reading=reading), services)
    for base in OVMS_BASES:
        yield _entry(f"{base}{CHAT}", chat, CHAT_OPERATION)
    for base in BASES:
        yield _entry(f"{base}/completions", completions, COMPLETIONS)
        yield _entry(f"{base}/embeddings", embeddings, EMBEDDINGS)
        yield _entry(f"{base}/responses", responses, RESPONSES)
    yield from kept_routes(services, V1, Family.OPENAI, TAG, ERRORS)
    yield _entry(f"{V1}/responses/input_tokens", input_tokens, INPUT_TOKENS)


def _entry(path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, Family.OPENAI, operation)
