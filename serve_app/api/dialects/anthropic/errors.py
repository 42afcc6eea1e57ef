"""Errors in Anthropic's shape: one table maps conditions to types. Depends on no route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from serve_app.api.dialects.chat.wire import named_sse
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import Condition, PromptTooLong, ServeError

_INVALID: Final = "invalid_request_error"
_API: Final = "api_error"
_OVERLOADED: Final = "overloaded_error"
_NOT_FOUND: Final = "not_found_error"
_TIMEOUT: Final = "timeout_error"
# If a message begins in this way, agents shorten their conversation or their `max_tokens` and ask again.
_TOO_LONG: Final = "prompt is too long: "
_TOO_LONG_BESIDE_OUTPUT: Final = "input length and `max_tokens` exceed context limit: "


OVERLOADED_STATUS: Final = 529  # its own, for a full queue

TYPE: Final[Mapping[Condition, str]] = MappingProxyType(
    {
        Condition.INVALID_BODY: _INVALID,
        Condition.INVALID_FIELD: _INVALID,
        Condition.MODEL_NOT_FOUND: _NOT_FOUND,
        Condition.VERSION_NOT_FOUND: _NOT_FOUND,
        Condition.PROMPT_TOO_LONG: _INVALID,
        Condition.UNAUTHENTICATED: "authentication_error",
        Condition.PERMISSION_DENIED: "permission_error",
        Condition.QUOTA_EXCEEDED: "rate_limit_error",
        Condition.OVERLOADED: _OVERLOADED,
        Condition.UNAVAILABLE: _OVERLOADED,
        Condition.DEADLINE_EXCEEDED: _TIMEOUT,
        Condition.ENGINE_REFUSED: _API,
        Condition.GENERATION_FAILED: _API,
        Condition.METHOD_NOT_ALLOWED: _INVALID,
        Condition.BODY_TOO_LARGE: "request_too_large",
        Condition.READ_TIMEOUT: _TIMEOUT,
        Condition.ROUTE_NOT_FOUND: _NOT_FOUND,
        Condition.ALREADY_EXISTS: _INVALID,
        Condition.CONFLICT: _INVALID,
        Condition.GUARDRAIL_TRIGGERED: _INVALID,
    }
)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. With a 429, 503 or 529, the headers say when to try again."""
    status = OVERLOADED_STATUS if error.condition is Condition.OVERLOADED else error.condition.status
    return ErrorReply(status, headers_of(error, status), _body(error))


def broken(error: ServeError) -> bytes:
    """The end of a failed stream."""
    return named_sse("error", _body(error))


def _body(error: ServeError) -> bytes:
    kind = TYPE[error.condition]
    said = error.message
    if isinstance(error, PromptTooLong):
        said = (_TOO_LONG_BESIDE_OUTPUT if error.param == "max_tokens" else _TOO_LONG) + said

    def encode(message: str) -> bytes:
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})

    return bounded(said, encode)
