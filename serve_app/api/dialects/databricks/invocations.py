"""Databricks' routes below /serving-endpoints.

The path or the body names the endpoint, and the endpoint's task determines which fields a body may have.
"""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from serve_app.api.context import header
from serve_app.api.dialects.databricks.chat import ChatDialect
from serve_app.api.dialects.databricks.completions import CompletionDialect
from serve_app.api.dialects.databricks.embeddings import EmbeddingDialect
from serve_app.api.dialects.databricks.fields import RouteContext
from serve_app.api.exchange.embed import EmbedExchange
from serve_app.api.exchange.generate import GenerateExchange
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, Task


class InvocationRoute:
    """POST .../invocations of an endpoint, or of one of its served entities."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Like `GenerateRoute`, but an unknown endpoint is refused before the body is read."""
        names = scope["path_params"]
        endpoint, _ = self._services.endpoints(scope).resolve(names["endpoint"], self._services.backend)
        exchange = _exchange(endpoint.task, self._services, scope, receive, send)
        await exchange.run(names["endpoint"], names.get("entity"))


class TaskRoute:
    """POST of a task. The body names the endpoint."""

    def __init__(self, task: Task, services: Services) -> None:
        self._task = task
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        await _exchange(self._task, self._services, scope, receive, send).run()


def _exchange(
    task: Task, services: Services, scope: Scope, receive: Receive, send: Send
) -> GenerateExchange | EmbedExchange:
    """One request of a task, and its answer."""
    target = RouteContext(partial(_find, services, scope), _accepts_events(header(scope, b"accept")))
    if task is Task.EMBEDDINGS:
        return EmbedExchange(EmbeddingDialect(target), services, scope, receive, send)
    dialect = ChatDialect(target) if task is Task.CHAT else CompletionDialect(target)
    return GenerateExchange(dialect, services, scope, receive, send)


def _find(services: Services, scope: Scope, name: str) -> Endpoint:
    """The endpoint that `name` stands for; `name` may also contain an adapter. Raises ModelNotFound."""
    endpoint, adapter = services.endpoints(scope).resolve(name, services.backend)
    return endpoint if adapter is None else endpoint.model_copy(update={"name": name})


def _accepts_events(accept: str | None) -> bool:
    """Whether the header `Accept` asks for a stream; the header counts only if the body has no `stream`."""
    types = {each.partition(";")[0].strip().lower() for each in (accept or "").split(",")}
    return "text/event-stream" in types and "application/json" not in types
