"""OpenAI's routes as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Final

from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.chat.answers import EmbeddingList
from serve_app.api.dialects.openai.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ErrorBody,
    InputTokenCount,
)
from serve_app.api.dialects.openai.chat import ChatBody
from serve_app.api.dialects.openai.completions import CompletionBody
from serve_app.api.dialects.openai.embeddings import EmbeddingBody
from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.dialects.responses.operation import kept_routes, response_operation
from serve_app.api.openapi.operation import ASKS_MODEL, Answer, Body, Errors, Operation, streamed

TAG: Final = "OpenAI"
ERRORS: Final = Errors(type=ErrorBody, render=render_error)

_UNKNOWN: Final = "Unknown fields are ignored, and named in the header `X-Ignored-Fields`."

CHAT: Final = Operation(
    summary="Chat",
    tag=TAG,
    what=f"Messages in, the assistant's next message out. {_UNKNOWN}",
    bodies=(Body(type=ChatBody, examples=examples.CHAT),),
    answers=streamed(ChatCompletion, ChatChunk | ErrorBody),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
COMPLETIONS: Final = Operation(
    summary="Completions",
    tag=TAG,
    what=f"Prompts in, their continuations out. {_UNKNOWN}",
    bodies=(Body(type=CompletionBody, examples=examples.COMPLETION),),
    answers=streamed(Completion, CompletionChunk | ErrorBody),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
EMBEDDINGS: Final = Operation(
    summary="Embeddings",
    tag=TAG,
    what=f"Texts in, a vector each out. {_UNKNOWN}",
    bodies=(Body(type=EmbeddingBody, examples=examples.EMBEDDING),),
    answers=(Answer(what="The vectors.", type=EmbeddingList),),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
RESPONSES: Final = response_operation(TAG, ERRORS)
KEPT_RESPONSES: Final = kept_routes(TAG, ERRORS)
INPUT_TOKENS: Final = Operation(
    summary="Count the input of a response",
    tag=TAG,
    what="How many tokens the model would read. The body is that of the response.",
    bodies=(Body(type=ResponseBody, examples=examples.RESPONSE),),
    answers=(Answer(what="The count.", type=InputTokenCount),),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
