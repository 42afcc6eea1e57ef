"""Whether the gateway lives and is ready, and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.auth import PeerOf
from serve_app.api.backend import Accounts, Backend
from serve_app.api.connection import reply
from serve_app.api.context import header
from serve_app.api.directory import Directory
from serve_app.errors import ServeError
from serve_app.telemetry import CONTENT_TYPE, Metrics

NO_ENDPOINTS = "no endpoint is configured; set user_config.endpoints of the Gateway in the deploy file"

_JSON = {"content-type": "application/json", "cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether every endpoint can answer, and everything that is not as it is to be."""

    is_ready: bool
    reasons: tuple[str, ...]

    @property
    def status(self) -> str:
        return ("degraded" if self.reasons else "ready") if self.is_ready else "not ready"


def condition(directory: Directory, backend: Backend) -> Condition:
    """The condition of this gateway, now."""
    if not len(directory):
        return Condition(False, (NO_ENDPOINTS,))
    silent: list[str] = []
    reasons: list[str] = []
    for endpoint in directory:
        missing = {e.app: why for e in endpoint.served_entities if (why := backend.missing(e.app))}
        words = [f"{app}: {why}" for app, why in missing.items()]
        if all(entity.app in missing for entity in endpoint.reachable):
            silent.append(f"endpoint {endpoint.name} has nobody who can answer: {'; '.join(words)}")
        else:
            reasons += [f"endpoint {endpoint.name}: {each}" for each in words]
    reasons += [
        f"endpoint {name} changes once these can answer: {', '.join(apps)}"
        for name, apps in directory.waiting.items()
    ]
    return Condition(not silent, (*silent, *reasons))


class Live:
    """GET /livez: the process answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, _JSON, b'{"status":"live"}')


class Ready:
    """GET /readyz and /health: 503 when an endpoint has nobody who can answer, else 200.

    A server that is `degraded` answers every endpoint, though not with all that it is to have.
    The reasons name models, so only those get them who could also list the models.
    """

    def __init__(self, backend: Backend, directory: Directory, accounts: Accounts, peer_of: PeerOf) -> None:
        self._backend = backend
        self._directory = directory
        self._accounts = accounts
        self._peer_of = peer_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = condition(self._directory, self._backend)
        body: dict[str, object] = {"status": found.status}
        if found.reasons and self._may_know(scope):
            body["reasons"] = found.reasons
        headers = _JSON if found.is_ready else {**_JSON, "retry-after": "1"}
        await reply(send, 200 if found.is_ready else 503, headers, msgspec.json.encode(body))

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
