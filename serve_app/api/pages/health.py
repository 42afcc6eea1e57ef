"""Whether the gateway is live and ready, and its metrics."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from serve_app.api.context import header
from serve_app.api.edge.auth import caller_of
from serve_app.api.edge.connection import reply, reply_json
from serve_app.api.pages.condition import condition
from serve_app.api.services import Services
from serve_app.errors import ServeError, Unavailable
from serve_app.loopback import is_local_name, is_loopback
from serve_app.telemetry import CONTENT_TYPE, Metrics

_FRESH = {"cache-control": "no-store"}


class Live:
    """GET /livez: the process answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply_json(send, {"status": "live"}, headers=_FRESH)


class Ready:
    """GET /readyz and /health: 503 when an endpoint has no entity that can answer, else 200.

    A server that is `degraded` can answer for every endpoint, but something is missing. The reasons name
    models, so they are shown only to callers who may list the models.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = condition(self._services)
        body: dict[str, object] = {"status": found.status}
        if found.reasons and self._may_know(scope):
            body["reasons"] = found.reasons
        headers = _FRESH if found.is_ready else {**_FRESH, "retry-after": "1"}
        await reply_json(send, body, 200 if found.is_ready else 503, headers)

    def _may_know(self, scope: Scope) -> bool:
        services = self._services
        try:
            caller_of(scope, services.accounts, services.peer_of, services.config.allowed_hosts)
        except Unavailable:  # no caller is known yet, and the operator must see the reason
            host = header(scope, b"host") or "localhost"
            return is_loopback(services.peer_of(scope)) and is_local_name(host, services.config.allowed_hosts)
        except ServeError:
            return False
        return True


class MetricsPage:
    """GET /metrics in Prometheus' text format."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, {"content-type": CONTENT_TYPE}, self._metrics.render())
