"""OpenVINO Model Server's routes as the OpenAPI document describes them."""

from __future__ import annotations

from functools import partial
from typing import Final

from serve_app.api.dialects.chat.answers import EmbeddingList
from serve_app.api.dialects.chat.examples import CHAT, COMPLETION, EMBEDDING, RERANK, RESPONSE, TOKENIZE
from serve_app.api.dialects.ovms import answers
from serve_app.api.dialects.ovms.chat import ChatBody
from serve_app.api.dialects.ovms.completions import CompletionBody
from serve_app.api.dialects.ovms.embeddings import EmbeddingBody
from serve_app.api.dialects.ovms.errors import render_error
from serve_app.api.dialects.ovms.rerank import RerankBody
from serve_app.api.dialects.ovms.responses.answers import OvmsEvent, OvmsResponse
from serve_app.api.dialects.ovms.responses.body import ResponseBody
from serve_app.api.dialects.ovms.tokenize import OvmsTokenizeBody
from serve_app.api.dialects.string_error import StringErrorBody
from serve_app.api.openapi.operation import ASKS_MODEL, Answer, Body, Errors, Operation, streamed
from serve_app.config import OvmsConfig

TAG: Final = "OpenVINO Model Server"


def errors(config: OvmsConfig) -> Errors:
    """Errors, with the status of malformed JSON that the operator chose."""
    render = partial(render_error, malformed_json=config.malformed_json_status)
    return Errors(type=StringErrorBody, render=render)


def _operation(config: OvmsConfig, summary: str, what: str, body: Body, *told: Answer) -> Operation:
    return Operation(
        summary=summary,
        tag=TAG,
        what=f"{what} Unknown fields are ignored.",
        bodies=(body,),
        answers=told,
        errors=errors(config),
        conditions=ASKS_MODEL,
    )


def chat(config: OvmsConfig) -> Operation:
    """Messages in, messages out."""
    return _operation(
        config,
        "Chat",
        "Messages in, the assistant's next message out.",
        Body(type=ChatBody, examples=CHAT),
        *streamed(answers.ChatCompletion, answers.ChatChunk | StringErrorBody),
    )


def completions(config: OvmsConfig) -> Operation:
    """A prompt in, continuations out."""
    return _operation(
        config,
        "Completions",
        "A prompt in, its continuations out.",
        Body(type=CompletionBody, examples=COMPLETION),
        *streamed(answers.Completion, answers.CompletionChunk | StringErrorBody),
    )


def responses(config: OvmsConfig) -> Operation:
    """Items in, items out."""
    return _operation(
        config,
        "Responses",
        "Items in, items out. Nothing of a response is kept: the input holds the earlier items.",
        Body(type=ResponseBody, examples=RESPONSE),
        *streamed(OvmsResponse, OvmsEvent, what="The whole response."),
    )


def embeddings(config: OvmsConfig) -> Operation:
    """Texts in, vectors out."""
    return _operation(
        config,
        "Embeddings",
        "Texts in, a vector each out.",
        Body(type=EmbeddingBody, examples=EMBEDDING),
        Answer(what="The vectors.", type=EmbeddingList),
    )


def rerank(config: OvmsConfig) -> Operation:
    """Documents in the order of their likeness to a query."""
    return _operation(
        config,
        "Rerank",
        "Documents in the order of their likeness to a query.",
        Body(type=RerankBody, examples=RERANK),
        Answer(what="The documents, the likest first.", type=answers.Ranking),
    )


def tokenize(config: OvmsConfig) -> Operation:
    """Texts as tokens."""
    return _operation(
        config,
        "Tokenize",
        "Texts as tokens of a model.",
        Body(type=OvmsTokenizeBody, examples=TOKENIZE),
        Answer(what="The tokens.", type=answers.TextTokens),
    )
