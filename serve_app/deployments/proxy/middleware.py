"""The answers of Serve's own proxy, in the format of the request's protocol.

Serve's proxy answers in plain text when no gateway can answer: 404 while nothing is deployed, 500 for a
gateway that ended before it answered, 408 and 503 for reasons of its own. A client's library can neither
parse these nor recover from them. Serve puts `middlewares()` around its proxy if the variable CALLBACK names
it. As in HAProxy, a request whose gateway ended before it answered is repeated, unless it is a management
request (docs/decisions/serving-repeated-requests.md). Answers that have begun stay as they are, and so do the
pages below /-/. Only the page of routes is answered as missing, because it shows applications to any caller.
"""

from __future__ import annotations

import json
import os
from typing import Final
from urllib.parse import unquote

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.context import header
from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.family import HEADER, WORDS, Family, family_of, split_prefix
from serve_app.deployments.http10 import speak_http10
from serve_app.deployments.proxy.answers import LOST, MISSING, STARTING, UNREADY, UNSURE
from serve_app.deployments.proxy.repeats import MAX_BYTES, REPEATS, is_change
from serve_app.errors import DeadlineExceeded, ServeError, Unavailable

CALLBACK: Final = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
HERE: Final = "serve_app.deployments.proxy.middleware.middlewares"
V1: Final = "SERVE_APP_V1_DIALECT"  # the protocol of paths below /v1: the gateway's `v1_dialect`

_PAGES: Final = "/-/"
_ROUTES: Final = "/-/routes"
_LATE: Final = DeadlineExceeded("the request took longer than the server's proxy waits")


def middlewares() -> list[Middleware]:
    """Called by Serve in the process of a proxy."""
    speak_http10()
    return [Middleware(OwnWords, v1=Family(os.environ.get(V1, Family.OPENAI)))]


class OwnWords:
    """An ASGI app around Serve's proxy."""

    def __init__(self, app: ASGIApp, v1: Family) -> None:
        self._app = app
        self._v1 = v1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].lower() == _ROUTES:
            await self._reply(scope, send, MISSING)
            return
        if scope["type"] != "http" or scope["path"].startswith(_PAGES):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        changes = is_change(scope["method"], unquote(scope["path"]))
        has_begun = False
        error: ServeError | None = None

        async def pass_on(message: Message) -> None:
            nonlocal has_begun, error
            if not has_begun:
                has_begun, error = True, _error_of(message)
            if error is None:
                await send(message)

        for _ in range(1 + REPEATS):
            await self._app({**scope, "headers": list(scope["headers"])}, body.receive, pass_on)
            if has_begun or changes or not body.rewind():
                break
        if not has_begun:  # Serve's proxy gave up, and its server would say 500
            error = UNSURE if changes else LOST
        if error is not None:
            if error is MISSING and not await self._has_routes(scope, receive):
                error = STARTING
            await self._reply(scope, send, error)

    async def _has_routes(self, scope: Scope, receive: Receive) -> bool:
        """Whether anything is deployed, according to the proxy's own status page."""
        body = b""

        async def keep(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")

        await self._app({**scope, "path": _ROUTES, "raw_path": _ROUTES.encode()}, receive, keep)
        try:
            return bool(json.loads(body))
        except ValueError:  # it does not know yet, and says so in plain text
            return False

    async def _reply(self, scope: Scope, send: Send, error: ServeError) -> None:
        prefix, inner = split_prefix(unquote(scope["path"]))
        word = header(scope, HEADER.lower().encode())
        reply = render_error(family_of(word if word in WORDS else None, prefix, inner, self._v1), error)
        length = str(len(reply.body))
        headers = [(name.encode(), text.encode()) for name, text in reply.headers.items()]
        headers.append((b"content-length", length.encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


class _Body:
    """A request's body; a short one can be read again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []  # what was received
        self._room = MAX_BYTES
        self._next = 0  # of `_kept`, to be read
        self._can_rewind = True

    async def receive(self) -> Message:
        """ASGI's `receive`."""
        if self._next == len(self._kept):
            message = await self._receive()
            self._room -= len(message.get("body", b""))
            if self._room < 0 or message["type"] == "http.disconnect":  # the client is gone
                self._can_rewind = False
                self._kept.clear()
                self._next = 0
                return message
            self._kept.append(message)
        self._next += 1
        return self._kept[self._next - 1]

    def rewind(self) -> bool:
        """Whether the whole body can be read again, from its start."""
        self._next = 0
        return self._can_rewind


def _error_of(message: Message) -> ServeError | None:
    """The error that belongs to Serve's own answer, which begins with `message`; None for a gateway's answer.

    Gateways write errors as JSON, and Serve as plain text.
    """
    headers = {name.lower(): text for name, text in message.get("headers", ())}
    if not headers.get(b"content-type", b"").startswith(b"text/plain"):
        return None
    match message.get("status"):
        case 404:
            return MISSING
        case 408:
            return _LATE
        case 429 | 503:
            after = headers.get(b"retry-after", b"")
            return Unavailable(UNREADY.message, retry_after_s=float(after)) if after.isdigit() else UNREADY
        case _:
            return None
