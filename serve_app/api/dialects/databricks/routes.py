"""Databricks' routes: invocations of an endpoint by its path, and of a task by the endpoint in the body."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.paths import BASES, V1
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.invocations import InvocationRoute, TaskRoute
from serve_app.api.dialects.databricks.operations import INVOCATION, KEPT_RESPONSES, RESPONSES, task_operation
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.exchange.kept_route import KeptRoute
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
    reading = Reading(services.responses is not None, services.config.pictures == "note")
    responses = GenerateRoute(ResponseDialect(render_error, reading), services)
    for base in (*BASES, ROOT, GATEWAY):
        yield _entry(f"{base}/chat/completions", TaskRoute(Task.CHAT, services), chat)
        yield _entry(f"{base}/completions", TaskRoute(Task.COMPLETIONS, services), completions)
        yield _entry(f"{base}/embeddings", TaskRoute(Task.EMBEDDINGS, services), embeddings)
        yield _entry(f"{base}/responses", responses, RESPONSES)
    for base, each in product((V1, ROOT, GATEWAY), KEPT_RESPONSES):
        route = KeptRoute(services, each.handle)
        yield _entry(f"{base}/responses{each.path}", route, each.operation, each.method)
    yield _entry(f"{ROOT}/open-responses", responses, RESPONSES)  # of models of every maker
    invocations = InvocationRoute(services)
    yield _entry(
        f"{ROOT}/{{endpoint:path}}/served-models/{{entity:path}}/invocations", invocations, INVOCATION
    )
    yield _entry(f"{ROOT}/{{endpoint:path}}/invocations", invocations, INVOCATION)


def _entry(path: str, app: ASGIApp, operation: Operation, method: str = "POST") -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.DATABRICKS, operation)
