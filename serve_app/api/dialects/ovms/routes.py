"""OpenVINO Model Server's routes: chat, completions, responses, embeddings, rerank and tokenize."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.chat.answers import EmbeddingList
from serve_app.api.dialects.chat.paths import BASES, CHAT, OVMS_BASES
from serve_app.api.dialects.ovms import answers
from serve_app.api.dialects.ovms.chat import ChatBody, ChatDialect
from serve_app.api.dialects.ovms.completions import CompletionBody, CompletionDialect
from serve_app.api.dialects.ovms.embeddings import EmbeddingBody, EmbeddingDialect
from serve_app.api.dialects.ovms.errors import render_error
from serve_app.api.dialects.ovms.rerank import RerankBody, RerankDialect
from serve_app.api.dialects.ovms.responses.answers import OvmsEvent, OvmsResponse
from serve_app.api.dialects.ovms.responses.body import ResponseBody
from serve_app.api.dialects.ovms.responses.dialect import ResponseDialect
from serve_app.api.dialects.ovms.tokenize import OvmsTokenizeBody, parse_tokenize
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.embed import EmbedRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import Answer, Body, Errors, asking, streamed
from serve_app.api.protocol.family import Family
from serve_app.api.protocol.string_error import StringErrorBody
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.config import OvmsConfig
from serve_app.types import Scope

TAG: Final = "OpenVINO Model Server"


def errors(config: OvmsConfig) -> Errors:
    """Errors, with the status that the operator chose for malformed JSON."""
    render = partial(render_error, malformed_json=config.malformed_json_status)
    return Errors(type=StringErrorBody, render=render)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of the protocol. Rerank and tokenize exist only below the protocol's own base paths."""
    config, notes = services.config.ovms, services.config.pictures == "note"
    failures = errors(config)

    def each(
        bases: Iterable[str], path: str, app: ASGIApp, summary: str, what: str, body: Body, *shapes: Answer
    ) -> Iterator[Entry]:
        operation = asking(TAG, failures, summary, f"{what} Unknown fields are ignored.", body, *shapes)
        for base in bases:
            yield Entry("POST", f"{base}{path}", app, Scope.INFERENCE, Family.OVMS, operation)

    yield from each(
        BASES,
        CHAT,
        GenerateRoute(ChatDialect(config), services),
        "Chat",
        "Messages in, the assistant's next message out.",
        Body(type=ChatBody, examples=examples.CHAT),
        *streamed(answers.ChatCompletion, answers.ChatChunk | StringErrorBody),
    )
    yield from each(
        BASES,
        "/completions",
        GenerateRoute(CompletionDialect(config), services),
        "Completions",
        "A prompt in, its continuations out.",
        Body(type=CompletionBody, examples=examples.COMPLETION),
        *streamed(answers.Completion, answers.CompletionChunk | StringErrorBody),
    )
    yield from each(
        BASES,
        "/responses",
        GenerateRoute(ResponseDialect(config, notes_pictures=notes), services),
        "Responses",
        "Items in, items out. Nothing of a response is kept: the input holds the earlier items.",
        Body(type=ResponseBody, examples=examples.RESPONSE),
        *streamed(OvmsResponse, OvmsEvent, what="The whole response."),
    )
    yield from each(
        BASES,
        "/embeddings",
        EmbedRoute(EmbeddingDialect(config), services),
        "Embeddings",
        "Texts in, a vector each out.",
        Body(type=EmbeddingBody, examples=examples.EMBEDDING),
        Answer(what="The vectors.", type=EmbeddingList),
    )
    yield from each(
        OVMS_BASES,
        "/rerank",
        EmbedRoute(RerankDialect(config), services),
        "Rerank",
        "Documents in the order of their likeness to a query.",
        Body(type=RerankBody, examples=examples.RERANK),
        Answer(what="The documents, the likest first.", type=answers.Ranking),
    )
    yield from each(
        OVMS_BASES,
        "/tokenize",
        QuestionRoute(parse_tokenize, services, failures.render),
        "Tokenize",
        "Texts as tokens of a model.",
        Body(type=OvmsTokenizeBody, examples=examples.TOKENIZE),
        Answer(what="The tokens.", type=answers.TextTokens),
    )
