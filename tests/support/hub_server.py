"""A hub with one repository, for huggingface_hub's own client: its API of models, trees and files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40


class _Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files = repo, files


class _Handler(BaseHTTPRequestHandler):
    server: _Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, repo = self.path.partition("?")[0], self.server.repo
        if path.startswith(f"/api/models/{repo}/tree/"):
            self._tell(
                [{"type": "file", "oid": _tag(b), "size": len(b), "path": n} for n, b in self._files()]
            )
        elif path.startswith(f"/api/models/{repo}"):
            siblings = [{"rfilename": name, "size": len(body)} for name, body in self._files()]
            self._tell({"id": repo, "sha": COMMIT, "siblings": siblings})
        else:
            self._send_file(path.removeprefix(f"/{repo}/resolve/{COMMIT}/"))

    do_HEAD = do_GET

    def _files(self) -> Any:
        return self.server.files.items()

    def _tell(self, value: object) -> None:
        self._send(json.dumps(value).encode(), {"content-type": "application/json"})

    def _send_file(self, name: str) -> None:
        body = self.server.files.get(name)
        if body is None:
            self.send_error(404)
            return
        self._send(body, {"etag": f'"{_tag(body)}"', "x-repo-commit": COMMIT})

    def _send(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _tag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def hub_server(repo: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a hub that has `repo`, whose branches and tags all are COMMIT."""
    server = _Hub(repo, files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
