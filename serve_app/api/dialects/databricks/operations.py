"""Databricks' routes as the OpenAPI document describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.api.dialects.chat.examples import CHAT, COMPLETION, EMBEDDING
from serve_app.api.dialects.databricks.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Embeddings,
    ErrorBody,
    ErrorEvent,
)
from serve_app.api.dialects.databricks.chat import ChatBody
from serve_app.api.dialects.databricks.completions import CompletionBody
from serve_app.api.dialects.databricks.embeddings import EmbeddingBody
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.responses.operation import kept_routes, response_operation
from serve_app.api.openapi.operation import ASKS_MODEL, Answer, Body, Errors, Operation, streamed
from serve_app.endpoints.endpoint import Task

TAG: Final = "Databricks"
ERRORS: Final = Errors(type=ErrorBody, render=render_error)

_BODIES: Final[Mapping[Task, tuple[Any, Mapping[str, Any]]]] = {
    Task.CHAT: (ChatBody, CHAT),
    Task.COMPLETIONS: (CompletionBody, COMPLETION),
    Task.EMBEDDINGS: (EmbeddingBody, EMBEDDING),
}
_ANSWERS: Final[Mapping[Task, tuple[Answer, ...]]] = {
    Task.CHAT: streamed(ChatCompletion, ChatChunk | ErrorEvent, what="The whole answer to a chat."),
    Task.COMPLETIONS: streamed(
        Completion, CompletionChunk | ErrorEvent, what="The whole answer to a completion."
    ),
    Task.EMBEDDINGS: (Answer(what="The vectors.", type=Embeddings),),
}
_SUMMARIES: Final = {Task.CHAT: "Chat", Task.COMPLETIONS: "Completions", Task.EMBEDDINGS: "Embeddings"}
_UNKNOWN: Final = "A field that is not known, and not null, is an error."


def task_operation(task: Task) -> Operation:
    """A task whose body names the endpoint."""
    body, examples = _BODIES[task]
    return Operation(
        summary=_SUMMARIES[task],
        tag=TAG,
        what=f"The field `model` names the endpoint. {_UNKNOWN}",
        bodies=(Body(type=body, examples=examples, required=("model",)),),
        answers=_ANSWERS[task],
        errors=ERRORS,
        conditions=ASKS_MODEL,
    )


def invocation_operation(task: Task) -> Operation:
    """An invocation of an endpoint whose task is known."""
    body, examples = _BODIES[task]
    return Operation(
        summary=_SUMMARIES[task],
        tag=TAG,
        what=_UNKNOWN,
        bodies=(Body(type=body, examples=examples),),
        answers=_ANSWERS[task],
        errors=ERRORS,
        conditions=ASKS_MODEL,
    )


INVOCATION: Final = Operation(
    summary="Invocations",
    tag=TAG,
    what=f"The endpoint's task decides what the body may be. {_UNKNOWN}",
    bodies=tuple(Body(type=body, examples=examples) for body, examples in _BODIES.values()),
    answers=tuple(answer for answers in _ANSWERS.values() for answer in answers),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
RESPONSES: Final = response_operation(TAG, ERRORS)
KEPT_RESPONSES: Final = kept_routes(TAG, ERRORS)
