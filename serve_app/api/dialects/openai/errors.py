"""Errors in OpenAI's shape: one table from condition to status, type and code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from serve_app.api.dialects.chat.wire import DONE, sse
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import headers_of
from serve_app.errors import BudgetSpent, NotKept, ServeError, UnsupportedField
from serve_app.limits import MAX_ERROR_BYTES

_INVALID: Final = "invalid_request_error"
_CAPACITY: Final = "service_unavailable_error"
_SERVER: Final = "server_error"
SPENT: Final = "insufficient_quota"  # type and code where the budget of a key is spent


class ErrorRow(NamedTuple):
    """How one condition looks on the wire."""

    status: int
    type: str
    code: str | None


TABLE: Final[Mapping[str, ErrorRow]] = MappingProxyType(
    {
        "E1": ErrorRow(400, _INVALID, None),
        "E2": ErrorRow(400, _INVALID, None),
        "E3": ErrorRow(404, _INVALID, "model_not_found"),
        "E4": ErrorRow(404, _INVALID, "model_not_found"),
        "E5": ErrorRow(400, _INVALID, "context_length_exceeded"),
        "E6": ErrorRow(401, _INVALID, "invalid_api_key"),
        "E6b": ErrorRow(403, _INVALID, "insufficient_permissions"),
        "E7": ErrorRow(429, "requests", "rate_limit_exceeded"),
        "E8": ErrorRow(503, _CAPACITY, "server_is_overloaded"),
        "E9": ErrorRow(503, _CAPACITY, "service_unavailable"),
        "E10": ErrorRow(504, "timeout_error", "deadline_exceeded"),
        "E11": ErrorRow(500, _SERVER, None),
        "E12": ErrorRow(500, _SERVER, None),
        "E13": ErrorRow(405, _INVALID, "method_not_allowed"),
        "E14": ErrorRow(413, _INVALID, "request_too_large"),
        "E14b": ErrorRow(408, _INVALID, "request_timeout"),
        "E15": ErrorRow(404, _INVALID, "unknown_url"),
        "E16": ErrorRow(409, _INVALID, "already_exists"),
        "E17": ErrorRow(409, _INVALID, "conflict"),
        "E18": ErrorRow(400, _INVALID, "content_filter"),
    }
)


def error_object(error: ServeError) -> bytes:
    """The error as JSON, shorter than MAX_ERROR_BYTES."""
    row = TABLE[error.condition]
    code = "unsupported_parameter" if isinstance(error, UnsupportedField) else row.code
    if isinstance(error, NotKept):
        code = "previous_response_not_found" if error.param == "previous_response_id" else None
    kind = row.type
    if isinstance(error, BudgetSpent):
        kind = code = SPENT
    fields = {"message": error.message, "type": kind, "param": error.param, "code": code}
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
