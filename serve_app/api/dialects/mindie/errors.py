"""Errors in MindIE's shape: a message and a type, which follows from the status.

An unknown model is a missing page where the path names it, and a wrong field where the
body does. Knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import ModelNotFound, ServeError

STATUS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "E1": 422,
        "E2": 422,
        "E3": 404,
        "E4": 404,
        "E5": 422,
        "E6": 401,
        "E6b": 403,
        "E7": 429,
        "E8": 429,
        "E9": 503,
        "E10": 500,
        "E11": 424,
        "E12": 500,
        "E13": 405,
        "E14": 422,
        "E14b": 408,
        "E15": 404,
        "E16": 409,
        "E17": 409,
        "E18": 422,
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
    return _reply(error, STATUS[error.condition])


def render_body_error(error: ServeError) -> ErrorReply:
    """The same for a route whose body names the model."""
    return _reply(error, 422 if isinstance(error, ModelNotFound) else STATUS[error.condition])


def broken(error: ServeError) -> bytes:
    """The JSON of an error after the first byte of an answer, whatever it is."""
    return error_object(error.message, INCOMPLETE)


def _reply(error: ServeError, status: int) -> ErrorReply:
    return ErrorReply(status, headers_of(error, status), error_object(error.message, TYPE[status]))
