"""Errors in OpenAI's shape: one table maps conditions to types and codes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from serve_app.api.dialects.chat.wire import DONE, sse
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import headers_of
from serve_app.errors import BudgetSpent, Condition, NotKept, ServeError, UnsupportedField
from serve_app.limits import MAX_ERROR_BYTES

_INVALID: Final = "invalid_request_error"
_CAPACITY: Final = "service_unavailable_error"
_SERVER: Final = "server_error"
SPENT: Final = "insufficient_quota"  # type and code where the budget of a key is spent


class ErrorRow(NamedTuple):
    """How one condition looks on the wire."""

    type: str
    code: str | None


TABLE: Final[Mapping[Condition, ErrorRow]] = MappingProxyType(
    {
        Condition.INVALID_BODY: ErrorRow(_INVALID, None),
        Condition.INVALID_FIELD: ErrorRow(_INVALID, None),
        Condition.MODEL_NOT_FOUND: ErrorRow(_INVALID, "model_not_found"),
        Condition.VERSION_NOT_FOUND: ErrorRow(_INVALID, "model_not_found"),
        Condition.PROMPT_TOO_LONG: ErrorRow(_INVALID, "context_length_exceeded"),
        Condition.UNAUTHENTICATED: ErrorRow(_INVALID, "invalid_api_key"),
        Condition.PERMISSION_DENIED: ErrorRow(_INVALID, "insufficient_permissions"),
        Condition.QUOTA_EXCEEDED: ErrorRow("requests", "rate_limit_exceeded"),
        Condition.OVERLOADED: ErrorRow(_CAPACITY, "server_is_overloaded"),
        Condition.UNAVAILABLE: ErrorRow(_CAPACITY, "service_unavailable"),
        Condition.DEADLINE_EXCEEDED: ErrorRow("timeout_error", "deadline_exceeded"),
        Condition.ENGINE_REFUSED: ErrorRow(_SERVER, None),
        Condition.GENERATION_FAILED: ErrorRow(_SERVER, None),
        Condition.METHOD_NOT_ALLOWED: ErrorRow(_INVALID, "method_not_allowed"),
        Condition.BODY_TOO_LARGE: ErrorRow(_INVALID, "request_too_large"),
        Condition.READ_TIMEOUT: ErrorRow(_INVALID, "request_timeout"),
        Condition.ROUTE_NOT_FOUND: ErrorRow(_INVALID, "unknown_url"),
        Condition.ALREADY_EXISTS: ErrorRow(_INVALID, "already_exists"),
        Condition.CONFLICT: ErrorRow(_INVALID, "conflict"),
        Condition.GUARDRAIL_TRIGGERED: ErrorRow(_INVALID, "content_filter"),
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
    """The end of a failed stream: the error, then the terminator."""
    return sse(error_object(error)) + DONE


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. With a 429 or a 503, the headers say when to try again."""
    status = error.condition.status
    return ErrorReply(status, headers_of(error, status), error_object(error))
