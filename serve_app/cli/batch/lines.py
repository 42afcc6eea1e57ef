"""Requests and answers of a batch, each on a line of JSON. Independent of the server.

A request is `{"custom_id", "method": "POST", "url", "body"}`. An answer is `{"id", "custom_id", "response":
{"status_code", "request_id", "body"}, "error": null}`: a request without an answer has no line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

MAX_LINE_BYTES: Final = 64 * 2**20  # more than a server takes as one body
MAX_ID_CHARS: Final = 512
_MEMBERS: Final = ("custom_id", "url", "body")


class LineError(Exception):
    """A line is not a request. The message says which and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request."""

    custom_id: str
    url: str  # a path of the server
    body: Mapping[str, Any]


def requests_of(file: BinaryIO) -> Iterator[Line]:
    """The requests of a file, in its order. Empty lines are skipped. Raises LineError."""
    seen: set[str] = set()
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise LineError(f"line {number}: is longer than {MAX_LINE_BYTES:,} bytes")
        if not raw.strip():
            continue
        try:
            line = _request(json.loads(raw))
        except (ValueError, RecursionError) as error:
            raise LineError(f"line {number}: {error}") from error
        if line.custom_id in seen:
            raise LineError(f"line {number}: custom_id {line.custom_id!r} was that of an earlier line")
        seen.add(line.custom_id)
        yield line


def _request(value: Any) -> Line:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    for name in _MEMBERS:
        if name not in value:
            raise ValueError(f"{name} is missing")
    custom_id, url, body = (value[name] for name in _MEMBERS)
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        raise ValueError(f"custom_id must be a string of 1 to {MAX_ID_CHARS} characters")
    if value.get("method", "POST") != "POST":
        raise ValueError("method must be POST")
    if not isinstance(url, str) or not url.startswith("/") or url.startswith("//"):
        raise ValueError("url must be a path of the server, such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise ValueError("body must be an object")
    if body.get("stream"):
        raise ValueError("body.stream must not be true: an answer is one line")
    return Line(custom_id, url, body)


class Answers:
    """The file of answers, to which lines are appended. The lines of an interrupted run are kept."""

    def __init__(self, path: Path) -> None:
        """Reads existing answers, and removes an incomplete last line.

        Raises OSError, and LineError for a file that contains something else or that another run writes.
        """
        self.done: set[str] = set()  # ids that have an answer
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        end = 0
        try:
            self._lock(path)
            for number, raw in enumerate(self._file, 1):
                if not raw.endswith(b"\n"):
                    break
                self.done.add(_answered(raw, path, number))
                end += len(raw)
            self._file.seek(end)
            self._file.truncate()
        except BaseException:
            self._file.close()
            raise

    def add(self, custom_id: str, status: int, request_id: str, body: Any) -> None:
        """Write an answer down. Raises OSError."""
        answer = {
            "id": f"batch_req_{os.urandom(12).hex()}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
        }
        # Half of a surrogate pair is not UTF-8, but when escaped, it is still JSON.
        self._file.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()
        self.done.add(custom_id)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, which `add` has reported
            self._file.close()

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LineError(f"{path}: another run writes this file") from error


def _answered(raw: bytes, path: Path, number: int) -> str:
    try:
        return str(json.loads(raw)["custom_id"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise LineError(f"{path}, line {number}: is no answer of a batch; name another file") from error
