"""Files that pages load: scripts, styles, pictures. They are read and compressed only once.

A digest of the content of all files is part of every path, so modules can import each other by relative
paths, and a browser may cache each file forever.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.errors import RouteNotFound

STATIC: Final = "/console/static/"
FOLDER: Final = Path(__file__).parent / "static"
_MEDIA: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_KEPT: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _File:
    media: str
    plain: bytes
    packed: bytes


class Assets:
    """The files below `static/`; an ASGI app for their paths."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in _MEDIA)
        digest = hashlib.sha256()
        self._files: dict[str, _File] = {}
        for path in paths:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            self._files[name] = _File(_MEDIA[path.suffix], content, gzip.compress(content, mtime=0))
        self._digest = digest.hexdigest()[:16]

    def url(self, name: str) -> str:
        """The path of the file `name`, such as "console.css". Raises KeyError if there is no such file."""
        if name not in self._files:
            raise KeyError(f"there is no file static/{name}")
        return f"{STATIC}{self._digest}/{name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises RouteNotFound. The files are not secret: the sign-in page needs them."""
        digest, _, name = scope["path"].removeprefix(STATIC).partition("/")
        file = self._files.get(name)
        if file is None or scope["method"] not in ("GET", "HEAD"):
            raise RouteNotFound("there is no such file")
        headers = {"vary": "accept-encoding"}
        # While gateways are being replaced, one may be asked for the files of another's page:
        # such an answer is not cached.
        headers["cache-control"] = _KEPT if digest == self._digest else "no-cache"
        body = file.plain
        if any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"]):
            headers["content-encoding"] = "gzip"
            body = file.packed
        await Response(body, headers=headers, media_type=file.media)(scope, receive, send)
