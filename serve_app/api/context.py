"""The state that the layers of one HTTP request share, kept in the ASGI scope."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.types import Scope

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.family import ANTHROPIC_VERSION, Family
from serve_app.errors import ServeError
from serve_app.limits import MAX_HEADER_ID_CHARS
from serve_app.telemetry import UNKNOWN
from serve_app.types import Budget, Caller, Usage

RenderError = Callable[[ServeError], ErrorReply]


class Recording(Protocol):
    """Records an answer for an inference table."""

    def sent(self, body: bytes) -> None:
        """Note a part of the body that was sent."""
        ...

    def done(self, context: RequestContext, status: int, seconds: float) -> None:
        """The request has ended. Never waits, never fails."""
        ...


_KEY: Final = "serve_app.context"
_CLIENT_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_HEADER_ID_CHARS}}}")


@dataclass(slots=True, eq=False)
class RequestContext:
    """One HTTP request. `id` is our own id; the client's id is only echoed and logged."""

    render_error: RenderError  # the protocol's, until a route has its own
    client_id: str | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    started: float = field(default_factory=time.monotonic)
    caller: Caller | None = None
    route: str = "unknown"  # the route's template, bounded, for metrics
    family: Family = Family.OPENAI  # the protocol it speaks
    is_forced: bool = False  # that one, by header or prefix
    endpoint: str = UNKNOWN  # a name of the catalogue, for metrics
    entity: str = UNKNOWN  # the served entity that answered, or was tried last
    failed_over: tuple[str, ...] = ()  # entities that were tried before that one, and failed
    outcome: str | None = None  # "cancelled", or the error condition after a stream's first byte
    status: int = 0  # of the answer; 0: nothing was sent
    ignored: tuple[str, ...] = ()  # fields of the request that have no effect
    clamped: Mapping[str, str] = field(default_factory=dict)  # the header of a shortened answer
    budgets: tuple[Budget, ...] = ()  # the caller's, after this request's claim
    first_token_s: float | None = None  # from arrival
    queue_s: float | None = None  # in the engine
    usage: Usage | None = None  # of an admitted request that ended
    recording: Recording | None = None  # of an endpoint with an inference table

    @property
    def public_id(self) -> str:
        return self.client_id or f"req_{self.id}"


def open_context(scope: Scope, render_error: RenderError) -> RequestContext:
    """Begin the context of a request. A malformed X-Request-Id is ignored."""
    given = header(scope, b"x-request-id")
    client_id = given if given is not None and _CLIENT_ID.fullmatch(given) else None
    context = RequestContext(render_error, client_id)
    scope[_KEY] = context
    return context


def context_of(scope: Scope) -> RequestContext:
    found: RequestContext = scope[_KEY]
    return found


def speaks_anthropic(scope: Scope, context: RequestContext) -> bool:
    """Whether this is an Anthropic client, judged by the path or by a header that only those clients send."""
    is_named = header(scope, ANTHROPIC_VERSION.encode()) is not None and not context.is_forced
    return is_named or context.family is Family.ANTHROPIC


def header(scope: Scope, name: bytes) -> str | None:
    """The first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def credentials_of(scope: Scope) -> str | None:
    """The header Authorization, or an Anthropic client's key, put in the form of that header."""
    key = header(scope, b"x-api-key")
    return header(scope, b"authorization") or (None if key is None else f"Bearer {key}")


def peer_of(scope: Scope) -> str | None:
    """The address of the other end of the socket; None if unknown."""
    client = scope.get("client")
    return client[0] if client else None
