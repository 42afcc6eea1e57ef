"""Errors in Anthropic's shape: one table from condition to status and type. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from serve_app.api.dialects.chat.wire import named_sse
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import PromptTooLong, ServeError

_INVALID: Final = "invalid_request_error"
_API: Final = "api_error"
_OVERLOADED: Final = "overloaded_error"
_NOT_FOUND: Final = "not_found_error"
_TIMEOUT: Final = "timeout_error"
# Agents shorten their conversation or their `max_tokens` and ask again at messages that begin so.
_TOO_LONG: Final = "prompt is too long: "
_TOO_LONG_BESIDE_OUTPUT: Final = "input length and `max_tokens` exceed context limit: "


class ErrorRow(NamedTuple):
    """How one condition looks on the wire."""

    status: int
    type: str


TABLE: Final[Mapping[str, ErrorRow]] = MappingProxyType(
    {
        "E1": ErrorRow(400, _INVALID),
        "E2": ErrorRow(400, _INVALID),
        "E3": ErrorRow(404, _NOT_FOUND),
        "E4": ErrorRow(404, _NOT_FOUND),
        "E5": ErrorRow(400, _INVALID),
        "E6": ErrorRow(401, "authentication_error"),
        "E6b": ErrorRow(403, "permission_error"),
        "E7": ErrorRow(429, "rate_limit_error"),
        "E8": ErrorRow(529, _OVERLOADED),
        "E9": ErrorRow(503, _OVERLOADED),
        "E10": ErrorRow(504, _TIMEOUT),
        "E11": ErrorRow(500, _API),
        "E12": ErrorRow(500, _API),
        "E13": ErrorRow(405, _INVALID),
        "E14": ErrorRow(413, "request_too_large"),
        "E14b": ErrorRow(408, _TIMEOUT),
        "E15": ErrorRow(404, _NOT_FOUND),
        "E16": ErrorRow(409, _INVALID),
        "E17": ErrorRow(409, _INVALID),
        "E18": ErrorRow(400, _INVALID),
    }
)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. 429, 503 and 529 say when to come back."""
    row = TABLE[error.condition]
    return ErrorReply(row.status, headers_of(error, row.status), _body(error))


def broken(error: ServeError) -> bytes:
    """The end of a stream that failed."""
    return named_sse("error", _body(error))


def _body(error: ServeError) -> bytes:
    kind = TABLE[error.condition].type
    said = error.message
    if isinstance(error, PromptTooLong):
        said = (_TOO_LONG_BESIDE_OUTPUT if error.param == "max_tokens" else _TOO_LONG) + said

    def encode(message: str) -> bytes:
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})

    return bounded(said, encode)
