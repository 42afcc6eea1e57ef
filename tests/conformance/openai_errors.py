"""The shape of OpenAI's errors, and the rows of their table that a model causes."""

from __future__ import annotations

from typing import Any, Final

import httpx

from serve_app.errors import (
    DeadlineExceeded,
    EngineRefused,
    GenerationFailed,
    NumericalError,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    Unavailable,
)

INVALID: Final = "invalid_request_error"

MALFORMED: Final = {
    "empty": b"",
    "cut": b'{"model": ',
    "unquoted-key": b"{stream: false}",
    "list": b"[]",
    "null": b"null",
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "nan": b'{"unknown": NaN}',
    "not-utf-8": b'{"model": "\xff"}',
}

ROWS: Final[dict[str, tuple[ServeError, int, str | None]]] = {
    "e5": (PromptTooLong("prompt: too long", param="prompt"), 400, "context_length_exceeded"),
    "e7": (QuotaExceeded("too much"), 429, "rate_limit_exceeded"),
    "e8": (Overloaded("full"), 503, "server_is_overloaded"),
    "e9": (Unavailable("loading"), 503, "service_unavailable"),
    "e10": (DeadlineExceeded("timeout"), 504, "deadline_exceeded"),
    "e11": (EngineRefused("no"), 500, None),
    "e12": (GenerationFailed("failed"), 500, None),
    "e12-numbers": (NumericalError("failed"), 500, None),
}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, whose shape must be right."""
    if answer.headers["content-type"] != "application/json" or list(answer.json()) != ["error"]:
        raise AssertionError(answer.text)
    error: dict[str, Any] = answer.json()["error"]
    if list(error) != ["message", "type", "param", "code"] or type(error["message"]) is not str:
        raise AssertionError(answer.text)
    return error
