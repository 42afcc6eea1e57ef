"""Errors in OpenAI's shape: one table from condition to status, type and code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from serve_app.api.dialects.base import ErrorReply
from serve_app.api.dialects.chat.wire import DONE, sse
from serve_app.api.dialects.error_reply import headers_of
from serve_app.errors import ServeError, UnsupportedField
from serve_app.limits import MAX_ERROR_BYTES

_INVALID: Final = "invalid_request_error"
_CAPACITY: Final = "service_unavailable_error"
_SERVER: Final = "server_error"


class Row(NamedTuple):
    """How one condition looks on the wire."""

    status: int
    type: str
    code: str | None


TABLE: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "E1": Row(400, _INVALID, None),
        "E2": Row(400, _INVALID, None),
        "E3": Row(404, _INVALID, "model_not_found"),
        "E4": Row(404, _INVALID, "model_not_found"),
        "E5": Row(400, _INVALID, "context_length_exceeded"),
        "E6": Row(401, _INVALID, "invalid_api_key"),
        "E6b": Row(403, _INVALID, "insufficient_permissions"),
        "E7": Row(429, "requests", "rate_limit_exceeded"),
        "E8": Row(503, _CAPACITY, "server_is_overloaded"),
        "E9": Row(503, _CAPACITY, "service_unavailable"),
        "E10": Row(504, "timeout_error", "deadline_exceeded"),
        "E11": Row(500, _SERVER, None),
        "E12": Row(500, _SERVER, None),
        "E13": Row(405, _INVALID, "method_not_allowed"),
        "E14": Row(413, _INVALID, "request_too_large"),
        "E14b": Row(408, _INVALID, "request_timeout"),
        "E15": Row(404, _INVALID, "unknown_url"),
    }
)


def error_object(error: ServeError) -> bytes:
    """The error as JSON, shorter than MAX_ERROR_BYTES."""
    row = TABLE[error.condition]
    code = "unsupported_parameter" if isinstance(error, UnsupportedField) else row.code
    fields = {"message": error.message, "type": row.type, "param": error.param, "code": code}
    body = msgspec.json.encode({"error": fields})
    if len(body) < MAX_ERROR_BYTES:
        return body
    # Cut by characters: one takes at most six bytes of JSON.
    fields["message"] = error.message[: MAX_ERROR_BYTES // 12]
    fields["param"] = None
    return msgspec.json.encode({"error": fields})


def broken(error: ServeError) -> bytes:
    """The end of a stream that failed: the error, then the terminator."""
    return sse(error_object(error)) + DONE


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. 429 and 503 say when to come back."""
    row = TABLE[error.condition]
    return ErrorReply(row.status, headers_of(error, row.status), error_object(error))
