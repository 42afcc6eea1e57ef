"""Databricks' routes below /serving-endpoints.

Path or body name the endpoint; its task decides what the body may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starlette.types import Receive, Scope, Send

from serve_app.api.context import header
from serve_app.api.dialects.base import Dialect
from serve_app.api.dialects.databricks_chat import ChatDialect
from serve_app.api.dialects.databricks_completions import CompletionDialect
from serve_app.api.dialects.databricks_fields import Target
from serve_app.api.generate import Exchange, Services
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField

_DIALECTS: Final[Mapping[Task, type[ChatDialect] | type[CompletionDialect]]] = MappingProxyType(
    {Task.CHAT: ChatDialect, Task.COMPLETIONS: CompletionDialect}
)


class InvocationRoute:
    """POST .../invocations of an endpoint, or of one of its served entities."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`; an endpoint that nobody knows is refused before the body is read."""
        services, names = self._services, scope["path_params"]
        endpoint = services.directory.find(names["endpoint"])
        dialect = _dialect(endpoint.task, services, scope)
        await Exchange(dialect, services, scope, receive, send).run(endpoint.name, names.get("entity"))


class TaskRoute:
    """POST of a task. The body names the endpoint."""

    def __init__(self, task: Task, services: Services) -> None:
        self._task = task
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        dialect = _dialect(self._task, self._services, scope)
        await Exchange(dialect, self._services, scope, receive, send).run()


def _dialect(task: Task, services: Services, scope: Scope) -> Dialect:
    """Raises InvalidField."""
    kind = _DIALECTS.get(task)
    if kind is None:
        raise InvalidField(f"endpoint: its task, {task}, is not available on this server")
    return kind(Target(services.directory.find, _accepts_events(header(scope, b"accept"))))


def _accepts_events(accept: str | None) -> bool:
    """Whether a client that does not say so in its body wants a stream."""
    types = {each.partition(";")[0].strip().lower() for each in (accept or "").split(",")}
    return "text/event-stream" in types and "application/json" not in types
