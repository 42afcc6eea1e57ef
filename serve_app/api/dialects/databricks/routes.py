"""Databricks' routes: invocations, whose path names the endpoint, and tasks, whose body names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.examples import CHAT, COMPLETION, EMBEDDING
from serve_app.api.dialects.chat.paths import BASES, V1
from serve_app.api.dialects.databricks import answers
from serve_app.api.dialects.databricks.chat import ChatBody
from serve_app.api.dialects.databricks.completions import CompletionBody
from serve_app.api.dialects.databricks.embeddings import EmbeddingBody
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.invocations import InvocationRoute, TaskRoute
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect, response_operation
from serve_app.api.dialects.responses.kept_routes import kept_routes
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import ASKS_MODEL, Answer, Body, Errors, Operation, asking, streamed
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Task
from serve_app.types import Scope

TAG: Final = "Databricks"
ERRORS: Final = Errors(type=answers.ErrorBody, render=render_error)

_BODIES: Final[Mapping[Task, tuple[Any, Mapping[str, Any]]]] = {
    Task.CHAT: (ChatBody, CHAT),
    Task.COMPLETIONS: (CompletionBody, COMPLETION),
    Task.EMBEDDINGS: (EmbeddingBody, EMBEDDING),
}
_ANSWERS: Final[Mapping[Task, tuple[Answer, ...]]] = {
    Task.CHAT: streamed(
        answers.ChatCompletion, answers.ChatChunk | answers.ErrorEvent, what="The whole answer to a chat."
    ),
    Task.COMPLETIONS: streamed(
        answers.Completion,
        answers.CompletionChunk | answers.ErrorEvent,
        what="The whole answer to a completion.",
    ),
    Task.EMBEDDINGS: (Answer(what="The vectors.", type=answers.Embeddings),),
}
_SUMMARIES: Final = {Task.CHAT: "Chat", Task.COMPLETIONS: "Completions", Task.EMBEDDINGS: "Embeddings"}
_UNKNOWN: Final = "A field that is not known, and not null, is an error."


def task_operation(task: Task, *, names_model: bool = True) -> Operation:
    """A task's OpenAPI operation: of its own route, whose body names the endpoint, or of an invocation."""
    body, examples = _BODIES[task]
    required = ("model",) if names_model else ()
    return asking(
        TAG,
        ERRORS,
        _SUMMARIES[task],
        f"The field `model` names the endpoint. {_UNKNOWN}" if names_model else _UNKNOWN,
        Body(type=body, examples=examples, required=required),
        *_ANSWERS[task],
    )


INVOCATION: Final = Operation(
    summary="Invocations",
    tag=TAG,
    what=f"The endpoint's task decides what the body may be. {_UNKNOWN}",
    bodies=tuple(Body(type=body, examples=examples) for body, examples in _BODIES.values()),
    answers=tuple(answer for several in _ANSWERS.values() for answer in several),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
RESPONSES: Final = response_operation(TAG, ERRORS)


ROOT: Final = "/serving-endpoints"
GATEWAY: Final = "/ai-gateway/mlflow/v1"  # where its AI gateway has the same tasks


def routes(services: Services) -> Iterator[Entry]:
    """All routes of the protocol."""
    chat, completions, embeddings = map(task_operation, (Task.CHAT, Task.COMPLETIONS, Task.EMBEDDINGS))
    reading = Reading(services.responses is not None, services.config.pictures == "note")
    responses = GenerateRoute(ResponseDialect(render_error, reading), services)
    for base in (*BASES, ROOT, GATEWAY):
        yield _entry(f"{base}/chat/completions", TaskRoute(Task.CHAT, services), chat)
        yield _entry(f"{base}/completions", TaskRoute(Task.COMPLETIONS, services), completions)
        yield _entry(f"{base}/embeddings", TaskRoute(Task.EMBEDDINGS, services), embeddings)
        yield _entry(f"{base}/responses", responses, RESPONSES)
    for base in (V1, ROOT, GATEWAY):
        yield from kept_routes(services, base, Family.DATABRICKS, TAG, ERRORS)
    yield _entry(f"{ROOT}/open-responses", responses, RESPONSES)  # of models of every maker
    invocations = InvocationRoute(services)
    yield _entry(
        f"{ROOT}/{{endpoint:path}}/served-models/{{entity:path}}/invocations", invocations, INVOCATION
    )
    yield _entry(f"{ROOT}/{{endpoint:path}}/invocations", invocations, INVOCATION)


def _entry(path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, Family.DATABRICKS, operation)
