"""Whether the gateway lives and is ready, and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.auth import PeerOf
from serve_app.api.backend import Accounts, Backend, Journal
from serve_app.api.connection import reply
from serve_app.api.context import header
from serve_app.api.directory import Directory
from serve_app.errors import ServeError
from serve_app.telemetry import CONTENT_TYPE, Metrics

NO_ENDPOINTS = "no endpoint is configured; set user_config.endpoints of the Gateway in the deploy file"
NO_USAGE = "usage cannot be written down, and must be"

_JSON = {"content-type": "application/json", "cache-control": "no-store"}


class Live:
    """GET /livez: the process answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, _JSON, b'{"status":"live"}')


@dataclass(frozen=True, slots=True)
class UsageHealth:
    """What the usage journal has to say of readiness."""

    journal: Journal
    is_required: bool  # requests are refused while nothing can be written down

    def problems(self) -> list[str]:
        """Why records of usage are not where they belong; empty when they are."""
        if self.journal.problem is None:
            return []
        return [
            f"usage records are not written ({self.journal.problem}): {self.journal.waiting} wait in memory, "
            f"{self.journal.dropped} are lost"
        ]


class Ready:
    """GET /readyz and /health: 200 when every model can answer, else 503.

    What answers but does not write its usage down is "degraded", with 200: to send its clients
    elsewhere would help neither them nor the records. With `usage_required` it answers nobody: 503.
    The reasons name models, so only those get them who could also list the models.
    """

    def __init__(
        self,
        backend: Backend,
        directory: Directory,
        accounts: Accounts,
        peer_of: PeerOf,
        usage: UsageHealth,
    ) -> None:
        self._usage = usage
        self._backend = backend
        self._directory = directory
        self._accounts = accounts
        self._peer_of = peer_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reasons = await self._backend.not_ready() if len(self._directory) else [NO_ENDPOINTS]
        problems = self._usage.problems()
        is_ready = not reasons and not (problems and self._usage.is_required)
        body: dict[str, object] = {
            "status": "not ready" if not is_ready else "degraded" if problems else "ready"
        }
        if (reasons or problems) and self._may_know(scope):
            body["reasons"] = reasons + problems
        headers = _JSON if is_ready else {**_JSON, "retry-after": "1"}
        await reply(send, 200 if is_ready else 503, headers, msgspec.json.encode(body))

    def _may_know(self, scope: Scope) -> bool:
        try:
            self._accounts.authenticate(header(scope, b"authorization"), self._peer_of(scope))
        except ServeError:
            return False
        return True


class MetricsPage:
    """GET /metrics in Prometheus' text format."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, {"content-type": CONTENT_TYPE}, self._metrics.render())
