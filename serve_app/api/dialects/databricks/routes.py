"""Databricks' routes: invocations of an endpoint by its path, and of a task by the endpoint in the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.paths import BASES
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.invocations import InvocationRoute, TaskRoute
from serve_app.api.dialects.databricks.operations import INVOCATION, RESPONSES, task_operation
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Task
from serve_app.types import Scope

ROOT: Final = "/serving-endpoints"
GATEWAY: Final = "/ai-gateway/mlflow/v1"  # where its AI gateway has the same tasks


def routes(services: Services) -> Iterator[Entry]:
    """All of them."""
    chat, completions, embeddings = map(task_operation, (Task.CHAT, Task.COMPLETIONS, Task.EMBEDDINGS))
    responses = GenerateRoute(ResponseDialect(render_error), services)
    for base in (*BASES, ROOT, GATEWAY):
        yield _entry(f"{base}/chat/completions", TaskRoute(Task.CHAT, services), chat)
        yield _entry(f"{base}/completions", TaskRoute(Task.COMPLETIONS, services), completions)
        yield _entry(f"{base}/embeddings", TaskRoute(Task.EMBEDDINGS, services), embeddings)
        yield _entry(f"{base}/responses", responses, RESPONSES)
    yield _entry(f"{ROOT}/open-responses", responses, RESPONSES)  # of models of every maker
    invocations = InvocationRoute(services)
    yield _entry(
        f"{ROOT}/{{endpoint:path}}/served-models/{{entity:path}}/invocations", invocations, INVOCATION
    )
    yield _entry(f"{ROOT}/{{endpoint:path}}/invocations", invocations, INVOCATION)


def _entry(path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, Family.DATABRICKS, operation)
