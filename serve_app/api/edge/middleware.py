"""The outermost layer of every HTTP request: ids, refused headers, answers to failures, the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.context import RenderError, RequestContext, header, open_context, speaks_anthropic
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.connection import reply
from serve_app.api.edge.ratelimit import budget_headers
from serve_app.api.edge.route_guide import RouteGuide
from serve_app.api.protocol.family import HEADER, Family, family_of, split_prefix
from serve_app.errors import GenerationFailed, InvalidField, RouteNotFound, ServeError
from serve_app.telemetry import Metrics, log_request

logger = logging.getLogger(__name__)

# Ray Serve's proxies obey these headers before our code runs. A client could switch off the detection
# of its own disconnect, or our deadlines.
REFUSED_HEADERS: Final = ("x-request-disconnect-disabled", "x-request-timeout-seconds")
QUIET: Final = frozenset(  # polled by machines every second
    {"/livez", "/readyz", "/health", "/metrics", "/api/2.0/live", "/grpc.health.v1.Health/Check"}
)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "gRPC"})  # the methods that logs name
INTERNAL: Final = "an internal error occurred; the request may be retried"


class Edge:
    """Every request gets a context, and every failure gets a public answer."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        guide: RouteGuide,
        renderers: Mapping[Family, RenderError],
        *,
        v1: Family = Family.OPENAI,
        ids_are_echoed: bool = False,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._guide = guide
        self._renderers = renderers
        self._v1 = v1
        self._ids_are_echoed = ids_are_echoed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            scope, send = _as_http(scope, send)
        context = open_context(scope, self._renderers[Family.OPENAI])
        status = 0
        # A header that comes twice would be read as one value with a comma.
        leave_id = self._ids_are_echoed and context.client_id is not None

        def send_with_id(message: Message) -> Awaitable[None]:  # runs for each event: no coroutine of its own
            nonlocal status
            if message["type"] == "http.response.start":
                status = context.status = message["status"]
                more = [] if leave_id else [(b"x-request-id", context.public_id.encode())]
                if speaks_anthropic(scope, context):  # by the name that its clients look for
                    more.append((b"request-id", context.public_id.encode()))
                more += budget_headers(context.budgets, context.caller)
                message["headers"] = [*message["headers"], *more]
            elif context.recording is not None:
                context.recording.sent(message.get("body", b""))
            return send(message)

        try:
            prefix, path = split_prefix(scope["path"])
            forced = header(scope, HEADER.lower().encode())
            context.family = family_of(forced, prefix, path, self._v1)
            context.is_forced = forced is not None or prefix is not None
            speaks = Family.ANTHROPIC if speaks_anthropic(scope, context) else context.family
            context.render_error = self._renderers[speaks]
            self._check(scope)
            if prefix is not None:  # from here on the alias is the route itself
                scope = {**scope, "path": path, "raw_path": path.encode()}
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            context.outcome = "cancelled"
        except Exception as error:
            public = self._of_router(error, scope) or public_error(error)
            if isinstance(public, GenerationFailed) and public is not error:
                logger.exception("request %s: unexpected error", context.id)
            if status:
                raise  # the answer has begun: the server closes the connection
            answer = context.render_error(public)
            headers = {**answer.headers, **_http_headers(error)}
            await reply(send_with_id, answer.status, headers, answer.body)
        finally:
            log_done(self._metrics, context, scope["method"], status)

    def _of_router(self, error: Exception, scope: Scope) -> ServeError | None:
        """The router's own refusal as a ServeError; None for any other error."""
        if not isinstance(error, HTTPException):
            return None
        told = {404: self._guide.not_found, 405: self._guide.wrong_method}.get(error.status_code)
        return told(scope["method"], scope["path"]) if told is not None else None

    def _check(self, scope: Scope) -> None:
        if "\n" in scope["path"]:
            # A pattern of the router ends in `$`, which also matches before a trailing line break.
            raise RouteNotFound("there is no such route")
        if (header(scope, b"upgrade") or "").lower() == "websocket":
            raise self._guide.no_socket(scope["path"])
        for name in REFUSED_HEADERS:
            if header(scope, name.encode()) is not None:
                raise InvalidField(None, f"the header {name} is not accepted; use the field timeout")


def log_done(metrics: Metrics, context: RequestContext, method: str, status: int) -> None:
    """Count a request that ended, and log it. `status` is the HTTP status; 0: there was no answer."""
    seconds = time.monotonic() - context.started
    outcome = context.outcome or (str(status) if status else "cancelled")
    metrics.request_done(context.endpoint, context.entity, context.route, outcome, seconds)
    if context.recording is not None:
        context.recording.done(context, status, seconds)
    if status == 200 and context.route in QUIET:
        return
    log_request(
        logger,
        request_id=context.id,
        client_request_id=context.client_id,
        key_id=context.caller.key_id if context.caller else None,
        method=method if method in METHODS else "other",
        route=context.route,
        endpoint=context.endpoint,
        entity=context.entity,
        status=status,
        outcome=outcome,
        seconds=round(seconds, 4),
    )


def _as_http(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """A WebSocket's handshake as a GET request, and a `send` that answers it."""

    async def answer(message: Message) -> None:
        if "websocket.http.response" in scope.get("extensions", {}):
            await send({**message, "type": f"websocket.{message['type']}"})
        elif message["type"] == "http.response.start":
            await send({"type": "websocket.close"})  # the server says 403 by itself

    return {**scope, "type": "http", "method": "GET"}, answer


def public_error(error: Exception) -> ServeError:
    """The public form of an exception."""
    if isinstance(error, ServeError):
        return error
    return GenerationFailed(INTERNAL)


def _http_headers(error: Exception) -> dict[str, str]:
    """The header `Allow` that the router sets on a 405."""
    allow = (error.headers or {}).get("Allow") if isinstance(error, HTTPException) else None
    return {} if allow is None else {"allow": ", ".join(sorted(allow.split(", ")))}
