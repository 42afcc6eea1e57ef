"""The routes of the OpenAPI document, and of a page that shows it: Swagger UI from this server's own files.

All bytes are made once, at the first request. The page loads nothing from other servers, and its content
security policy makes browsers enforce that. The routes require the scope `inference`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.edge.connection import reply
from serve_app.api.openapi.operation import JSON, Answer, Operation, Parameter
from serve_app.api.protocol.fields import words
from serve_app.api.route import Entry
from serve_app.errors import RouteNotFound
from serve_app.types import Scope

PAGE: Final = "/docs"
HTML: Final = "text/html; charset=utf-8"
SCRIPT: Final = "text/javascript; charset=utf-8"
STYLE: Final = "text/css; charset=utf-8"

_OWN_FILE: Final = "page.js"
FILES: Final[Mapping[str, str]] = {  # that the page loads -> their types
    "swagger-ui.css": STYLE,
    "swagger-ui-bundle.js": SCRIPT,
    _OWN_FILE: SCRIPT,
}

_PACKAGE: Final = "fastapi_offline"  # brings the files of Swagger UI; nothing of its code is used
_SCRIPT: Final = b"""\
addEventListener("load", () => SwaggerUIBundle({
  url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null, docExpansion: "none",
}));
"""
_HTML: Final = b"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>serve-app</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/page.js"></script>
</body>
</html>
"""
# Swagger UI sets styles on elements and draws its icons from `data:`. No script but this server's runs.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SAFE: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class DocumentPage:
    """GET /openapi.json."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """`make` writes the document, at the first request."""
        self._make = make
        self._body = b""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if not self._body:  # a quarter of a second of work, in which others are answered
            self._body = await asyncio.to_thread(lambda: msgspec.json.encode(self._make()))
        await reply(send, 200, {**_SAFE, "content-type": JSON}, self._body)


class DocsPage:
    """GET /docs."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await reply(send, 200, {**_SAFE, "content-type": HTML}, _HTML)


class FilePage:
    """GET /docs/{file}: the files that the page loads."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises RouteNotFound."""
        name = scope["path_params"]["file"]
        if name not in FILES:
            raise RouteNotFound(f"{PAGE}: there is no such file")
        headers = {**_SAFE, "content-type": FILES[name], "cache-control": "private, max-age=3600"}
        await reply(send, 200, headers, _file(name))


@cache
def _file(name: str) -> bytes:
    """The bytes of a file, read at its first request."""
    if name == _OWN_FILE:
        return _SCRIPT
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise RouteNotFound(f"{PAGE}: the package that brings this file is not installed")
    return (Path(package.origin).parent / "static" / name).read_bytes()


TAG: Final = "Documents"

_DOCUMENT: Final = Operation(
    summary="This document",
    tag=TAG,
    answers=(Answer(what="The document.", type=dict[str, Any], media=JSON),),
)
_PAGE: Final = Operation(
    summary="A page that shows this document",
    tag=TAG,
    answers=(Answer(what="The page.", type=str, media="text/html"),),
)
_FILE: Final = Operation(
    summary="What the page loads",
    tag=TAG,
    parameters=(Parameter(name="file", place="path", type=Annotated[str, words(FILES)], what="Its name."),),
    answers=tuple(
        Answer(what="The file.", type=str, media=media)
        for media in sorted({media.partition(";")[0] for media in FILES.values()})
    ),
    conditions=(RouteNotFound,),
)


def routes(document: Callable[[], Mapping[str, Any]]) -> Iterator[Entry]:
    """All routes of this module; `document` writes the document."""
    yield Entry("GET", "/openapi.json", DocumentPage(document), Scope.INFERENCE, operation=_DOCUMENT)
    yield Entry("GET", PAGE, DocsPage(), Scope.INFERENCE, operation=_PAGE)
    yield Entry("GET", f"{PAGE}/{{file}}", FilePage(), Scope.INFERENCE, operation=_FILE)
