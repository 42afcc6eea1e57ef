"""The error for a request that no route serves: the method, the path, and the route that was perhaps meant.

Depends on the table of routes, but not on bodies or protocols.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final
from urllib.parse import quote

from starlette.routing import compile_path

from serve_app.errors import MethodNotAllowed, RouteNotFound

MAX_SHOWN_CHARS: Final = 100  # of a path in a message
MAX_COMPARED_CHARS: Final = 200  # a longer path is not compared
ALIKE: Final = 0.8  # from this ratio of difflib on, two paths are alike

_METHOD: Final = re.compile(r"[A-Z]{1,10}")
_BASES: Final = ("/v1", "/v3", "/serving-endpoints")  # clients may leave these out of their base URL
_CHATS: Final = "chats are answered by POST /v1/chat/completions"

# APIs of other products that clients try, by a part of the path.
_BATCH: Final = "the command `serve-app batch` answers a file of requests, over any protocol"
_OLLAMA: Final = (
    "Ollama's API is not served; choose an OpenAI-compatible provider in the client's settings, "
    "with this server's address and /v1 as its base URL"
)
_ELSEWHERE: Final = (
    (re.compile(r"/messages/batches(/|$)"), f"no batches of messages are kept; {_BATCH}"),
    (re.compile(r"/batches(/|$)"), f"no batches are kept; {_BATCH}"),
    (re.compile(r"/(files|uploads)(/|$)"), f"no files are kept; {_BATCH}"),
    (re.compile(r"/api/chat/?$"), f"{_OLLAMA}: {_CHATS}"),
    (re.compile(r"/api/generate/?$"), f"{_OLLAMA}: texts are completed by POST /v1/completions"),
    (re.compile(r"/api/(tags|ps|show)/?$"), f"{_OLLAMA}: models are listed by GET /v1/models"),
    (re.compile(r"/api/embed(dings)?/?$"), f"{_OLLAMA}: texts are embedded by POST /v1/embeddings"),
    (re.compile(r"/api/(version|pull|push|create|copy|delete|blobs/.*)/?$"), _OLLAMA),
)
_KEPT: Final = "a kept response is returned by GET /v1/responses/{id}, and nothing runs in the background"
_MANAGED: Final = (
    "endpoints are managed below /api/2.0/serving-endpoints, and GET /serving-endpoints/models lists models"
)


class RouteGuide:
    """Errors that name the route nearest to the requested one."""

    def __init__(self, routes: Iterable[tuple[str, str]]) -> None:
        """`routes` are pairs of a method and a path. A path is a Starlette path template."""
        self._routes = [(method, path, compile_path(path)[0]) for method, path in routes]
        self._plain = sorted({path for _, path, _ in self._routes if "{" not in path})

    def not_found(self, method: str, path: str) -> RouteNotFound:
        """The error for a path that no route has."""
        hint = self._hint(path)
        return RouteNotFound(f"{asked(method, path)}: there is no such route{'; ' + hint if hint else ''}")

    def wrong_method(self, method: str, path: str) -> MethodNotAllowed | RouteNotFound:
        """The error for a path whose routes have other methods.

        Matches in which a path parameter has a slash do not count, since callers do not mean such routes.
        """
        found = [(known, pattern.match(path)) for known, _, pattern in self._routes]
        meant = [(known, match) for known, match in found if match is not None]
        if all(any("/" in value for value in match.groupdict().values()) for _, match in meant):
            return self.not_found(method, path)
        allowed = ", ".join(sorted({known for known, _ in meant}))
        return MethodNotAllowed(f"{asked(method, path)}: this route takes {allowed}")

    def no_socket(self, path: str) -> RouteNotFound:
        """The error for a WebSocket, which no route supports."""
        over_http = f"; {asked('POST', path)} answers over HTTP" if self._method(path) == "POST" else ""
        return RouteNotFound(f"{asked('GET', path)}: WebSockets are not served{over_http}")

    def _hint(self, path: str) -> str | None:
        if path.rstrip("/") == "/serving-endpoints":
            return _MANAGED
        for elsewhere, what in _ELSEWHERE:
            if elsewhere.search(path):
                return what
        for other in _variants(path):
            if (method := self._method(other)) is not None:
                return f"perhaps {asked(method, other)} was meant"
        if "/responses/" in path:
            return _KEPT
        if len(path) > MAX_COMPARED_CHARS:
            return None
        for other in get_close_matches(path, self._plain, n=1, cutoff=ALIKE):
            return f"perhaps {asked(self._method(other) or '', other)} was meant"
        return None

    def _method(self, path: str) -> str | None:
        """The method of the first route with this path, if there is one."""
        return next((method for method, _, pattern in self._routes if pattern.match(path)), None)


def asked(method: str, path: str) -> str:
    """The method and the path as a message shows them: of bounded length, in plain characters."""
    shown = quote(path[:MAX_SHOWN_CHARS], safe="/:@-._~")
    cut = "..." if len(path) > MAX_SHOWN_CHARS else ""
    return f"{method if _METHOD.fullmatch(method) else 'the method'} {shown}{cut}"


def _variants(path: str) -> Iterator[str]:
    """Other spellings of a path: without a trailing slash, with a base added, or without its first part."""
    plain = re.sub("/{2,}", "/", path).rstrip("/").lower()
    yield plain
    for base in _BASES:
        yield base + plain
    yield plain[plain.find("/", 1) :]
