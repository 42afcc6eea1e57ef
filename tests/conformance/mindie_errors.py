"""The shape of MindIE's errors, and the rows of their table that a model causes."""

from __future__ import annotations

from typing import Any, Final

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

MALFORMED: Final = (b"", b"{", b"[]", b"null", b'\xef\xbb\xbf{"model":"demo"}', b'{"x":NaN}')

ROWS: Final[dict[str, tuple[ServeError, int, str]]] = {
    "e5": (PromptTooLong("prompt: too long", param="prompt"), 422, "Input Validation Error"),
    "e7": (QuotaExceeded("too much"), 429, "Overloaded"),
    "e8": (Overloaded("full"), 429, "Overloaded"),
    "e9": (Unavailable("loading"), 503, "Service Unavailable"),
    "e10": (DeadlineExceeded("timeout"), 500, "Incomplete Generation"),
    "e11": (EngineRefused("no"), 424, "Generation Error"),
    "e12": (GenerationFailed("failed"), 500, "Incomplete Generation"),
    "e12-numbers": (NumericalError("failed"), 500, "Incomplete Generation"),
}


def told(answer: Any, status: int, kind: str, *words: str) -> None:
    """An error of this status and type, whose message has `words` in it."""
    body = answer.json()
    if (answer.status_code, body.get("error_type")) != (status, kind):
        raise AssertionError(f"{answer.status_code}: {answer.text}")
    if list(body) != ["error", "error_type"] or not all(word in body["error"] for word in words):
        raise AssertionError(answer.text)
    if answer.headers["content-type"] != "application/json":
        raise AssertionError(answer.headers)
