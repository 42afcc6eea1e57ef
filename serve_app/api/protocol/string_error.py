"""Errors as one string: Triton's format, which OpenVINO Model Server adopted."""

from __future__ import annotations

import msgspec
from typing_extensions import TypedDict

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import ServeError


class StringErrorBody(TypedDict):
    """An error as one string."""

    error: str


def error_object(error: ServeError) -> bytes:
    """The error as JSON, shorter than MAX_ERROR_BYTES."""
    return bounded(error.message, lambda message: msgspec.json.encode({"error": message}))


def error_reply(error: ServeError, status: int | None = None) -> ErrorReply:
    """The reply with this status, or by default with the status of the error's condition."""
    status = status or error.condition.status
    return ErrorReply(status, headers_of(error, status), error_object(error))
