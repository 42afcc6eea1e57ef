"""The shape of OpenAI's errors."""

from __future__ import annotations

from typing import Any, Final

import httpx

INVALID: Final = "invalid_request_error"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, whose shape must be right."""
    if answer.headers["content-type"] != "application/json" or list(answer.json()) != ["error"]:
        raise AssertionError(answer.text)
    error: dict[str, Any] = answer.json()["error"]
    if list(error) != ["message", "type", "param", "code"] or type(error["message"]) is not str:
        raise AssertionError(answer.text)
    return error
