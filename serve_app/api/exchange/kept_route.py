"""A route about one kept response, which its path names. Knows no protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import ResponseStore
from serve_app.api.context import context_of
from serve_app.api.edge.connection import reply_json
from serve_app.api.edge.query import checked_query
from serve_app.api.services import Services
from serve_app.errors import RouteNotFound, Unauthenticated
from serve_app.types import Caller

# (store, caller, id, query) -> answer
Handle = Callable[[ResponseStore, Caller, str, Mapping[str, str]], Awaitable[dict[str, Any]]]

IS_OFF = "no response is kept on this server, as if every request said store: false (setting responses.keep)"


class KeptRoute:
    """An ASGI app for one method."""

    def __init__(self, services: Services, handle: Handle) -> None:
        self._services = services
        self._handle = handle

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError."""
        services, caller = self._services, context_of(scope).caller
        if services.responses is None:
            raise RouteNotFound(IS_OFF)
        if caller is None:
            raise Unauthenticated("an API key is required")
        services.admission.check()
        query = checked_query(scope["query_string"])
        answer = await self._handle(services.responses, caller, scope["path_params"]["response"], query)
        await reply_json(send, answer)
