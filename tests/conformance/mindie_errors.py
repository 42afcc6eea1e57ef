"""The shape of MindIE's errors."""

from __future__ import annotations

from typing import Any


def told(answer: Any, status: int, kind: str, *words: str) -> None:
    """An error of this status and type, whose message has `words` in it."""
    body = answer.json()
    if (answer.status_code, body.get("error_type")) != (status, kind):
        raise AssertionError(f"{answer.status_code}: {answer.text}")
    if list(body) != ["error", "error_type"] or not all(word in body["error"] for word in words):
        raise AssertionError(answer.text)
    if answer.headers["content-type"] != "application/json":
        raise AssertionError(answer.headers)
