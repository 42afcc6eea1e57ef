"""The gateway's public API, called in this process with the session's key, as a script would call it.

Every call passes authentication, scopes and limits. No code here has more access than a caller with that key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Headers of the browser's request that are the console's, or that belong to the connection.
_NOT_PASSED: Final = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"cookie",
        b"x-csrf-token",
        b"connection",
        b"keep-alive",
        b"te",
        b"upgrade",
    }
)
# Further headers of a page's request, when the body and answer of the API call are not the page's.
_OF_A_PAGE: Final = frozenset(
    {b"accept", b"accept-encoding", b"content-type", b"content-length", b"transfer-encoding"}
    | {b"sec-fetch-site"}  # the console checked changes; a link that leads to a page shows the page
    | {b"x-request-id", b"if-none-match", b"if-modified-since", b"range"}
)
_PATH_SAFE: Final = "/:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The API's answer. `body` is the parsed JSON, or None if it is not JSON."""

    status: int
    headers: Mapping[str, str]
    text: str
    body: Any


class ApiError(Exception):
    """A refusal or a failure, with the API's own message."""

    def __init__(self, answer: ApiAnswer) -> None:
        self.answer = answer
        self.status = answer.status
        self.message, self.field = _told(answer)
        super().__init__(f"{self.status}: {self.message}")


class PublicApi:
    """The API on behalf of one browser request: with its address and host, and its session's key."""

    def __init__(self, app: ASGIApp, scope: Scope, key: str) -> None:
        """`scope` is the browser's request; `key` is "" if this server needs none."""
        self._app = app
        self._scope = scope
        self._key = key

    def with_key(self, key: str) -> PublicApi:
        """The same request with another key."""
        return PublicApi(self._app, self._scope, key)

    async def get(self, path: str, **query: Any) -> ApiAnswer:
        """Raises ApiError for a status of 400 or above; so does `change`."""
        return _good(await self.ask("GET", path, query=query))

    async def found(self, path: str, **query: Any) -> tuple[Any, ApiError | None]:
        """The JSON at `path` and None, or None and the refusal."""
        try:
            return (await self.get(path, **query)).body, None
        except ApiError as error:
            return None, error

    async def change(self, method: str, path: str, body: Any = None) -> ApiAnswer:
        return _good(await self.ask(method, path, body))

    async def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> ApiAnswer:
        """The whole answer, whatever its status. `path` is unquoted; values in `query` that are None are left
        out."""
        payload = b"" if body is None else json.dumps(body).encode()
        headers = _passed(self._scope, self._key, _OF_A_PAGE)
        if body is not None:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        asked = {**self._scope, "method": method, "headers": headers, "query_string": _query(query or {})}
        return await _whole(self._app, _at(asked, path), payload)


async def forward(app: ASGIApp, scope: Scope, receive: Receive, send: Send, path: str, key: str) -> None:
    """Forward a browser's own request to `path`, and stream the answer back.

    `receive` passes on a disconnect of the browser, so that its request is stopped.
    """
    await app(_at({**scope, "headers": _passed(scope, key)}, path), receive, send)


def _at(scope: Scope, path: str) -> Scope:
    return {**scope, "path": path, "raw_path": quote(path, safe=_PATH_SAFE).encode(), "state": {}}


def _passed(scope: Scope, key: str, besides: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    dropped = _NOT_PASSED | besides
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    return [*headers, (b"authorization", f"Bearer {key}".encode())] if key else headers


def _query(values: Mapping[str, Any]) -> bytes:
    given = {name: _word(value) for name, value in values.items() if value is not None}
    return urlencode(given, doseq=True).encode()


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


async def _whole(app: ASGIApp, scope: Scope, body: bytes) -> ApiAnswer:
    status = 0
    headers: dict[str, str] = {}
    parts: list[bytes] = []
    is_asked = False

    async def receive() -> Message:
        nonlocal is_asked
        if is_asked:
            await asyncio.Event().wait()  # this caller never disconnects; the waiter is cancelled
        is_asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in message["headers"]
            )
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    text = b"".join(parts).decode("utf-8", "replace")
    is_json = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    return ApiAnswer(status, headers, text, json.loads(text) if is_json and text else None)


def _good(answer: ApiAnswer) -> ApiAnswer:
    if answer.status >= 400:
        raise ApiError(answer)
    return answer


def _told(answer: ApiAnswer) -> tuple[str, str | None]:
    """The message and the field at fault, from an error in Databricks' or OpenAI's format."""
    body = answer.body if isinstance(answer.body, dict) else {}
    inner = body["error"] if isinstance(body.get("error"), dict) else body
    message = (
        inner.get("message") or body.get("error") or answer.text or f"the server answered {answer.status}"
    )
    field = inner.get("param")
    return str(message), field if isinstance(field, str) else None
