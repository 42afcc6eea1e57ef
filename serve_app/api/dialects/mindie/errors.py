"""Errors in MindIE's shape: a message and a type, which follows from the status.

If the path names an unknown model, the error is a 404; if the body does, a field is invalid. Depends on
no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import Condition, ModelNotFound, ServeError

# Where it is not the usual one.
STATUS: Final[Mapping[Condition, int]] = MappingProxyType(
    {
        Condition.INVALID_BODY: 422,
        Condition.INVALID_FIELD: 422,
        Condition.PROMPT_TOO_LONG: 422,
        Condition.OVERLOADED: 429,
        Condition.DEADLINE_EXCEEDED: 500,
        Condition.ENGINE_REFUSED: 424,
        Condition.BODY_TOO_LARGE: 422,
        Condition.GUARDRAIL_TRIGGERED: 422,
    }
)

INVALID: Final = "Input Validation Error"
INCOMPLETE: Final = "Incomplete Generation"

TYPE: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFoundError",
        405: "Method Not Allowed",
        408: "Request Timeout",
        409: "Conflict",
        422: INVALID,
        424: "Generation Error",
        429: "Overloaded",
        500: INCOMPLETE,
        503: "Service Unavailable",
    }
)


def error_object(message: str, kind: str) -> bytes:
    """The error as JSON, shorter than MAX_ERROR_BYTES."""
    return bounded(message, lambda text: msgspec.json.encode({"error": text, "error_type": kind}))


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body, for a route whose path names the model."""
    status = STATUS.get(error.condition, error.condition.status)
    return ErrorReply(status, headers_of(error, status), error_object(error.message, TYPE[status]))


def render_body_error(error: ServeError) -> ErrorReply:
    """Status, headers and body, if the body names the model: an unknown model is an invalid field."""
    if not isinstance(error, ModelNotFound):
        return render_error(error)
    return ErrorReply(422, headers_of(error, 422), error_object(error.message, INVALID))


def broken(error: ServeError) -> bytes:
    """The JSON of any error that occurs after the first byte of an answer."""
    return error_object(error.message, INCOMPLETE)
