"""Errors as one string: the shape and statuses of Triton, which OpenVINO Model Server took over."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from typing_extensions import TypedDict

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import ServeError

STATUS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "E1": 400,
        "E2": 400,
        "E3": 404,
        "E4": 404,
        "E5": 400,
        "E6": 401,
        "E6b": 403,
        "E7": 429,
        "E8": 503,
        "E9": 503,
        "E10": 504,
        "E11": 500,
        "E12": 500,
        "E13": 405,
        "E14": 413,
        "E14b": 408,
        "E15": 404,
        "E16": 409,
        "E17": 409,
        "E18": 400,
    }
)


class StringErrorBody(TypedDict):
    """An error as one string."""

    error: str


def error_object(error: ServeError) -> bytes:
    """The error as JSON, shorter than MAX_ERROR_BYTES."""
    return bounded(error.message, lambda message: msgspec.json.encode({"error": message}))


def error_reply(error: ServeError, status: int) -> ErrorReply:
    """The answer with this status."""
    return ErrorReply(status, headers_of(error, status), error_object(error))
