"""Errors in Triton's shape, one string, and their status on gRPC. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.string_error import STATUS, error_object, error_reply
from serve_app.errors import ServeError

__all__ = ["GRPC_STATUS", "NOT_READY", "error_object", "probe_error", "render_error"]

NOT_READY: Final = 400  # the status of a probe that is not ready

# Condition -> name of a grpc.StatusCode.
GRPC_STATUS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "E1": "INVALID_ARGUMENT",
        "E2": "INVALID_ARGUMENT",
        "E3": "NOT_FOUND",
        "E4": "NOT_FOUND",
        "E5": "INVALID_ARGUMENT",
        "E6": "UNAUTHENTICATED",
        "E6b": "PERMISSION_DENIED",
        "E7": "RESOURCE_EXHAUSTED",
        "E8": "UNAVAILABLE",
        "E9": "UNAVAILABLE",
        "E10": "DEADLINE_EXCEEDED",
        "E11": "INTERNAL",
        "E12": "INTERNAL",
        "E13": "UNIMPLEMENTED",
        "E14": "INVALID_ARGUMENT",
        "E14b": "DEADLINE_EXCEEDED",
        "E15": "UNIMPLEMENTED",
        "E16": "ALREADY_EXISTS",
        "E17": "ABORTED",
        "E18": "INVALID_ARGUMENT",
    }
)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body of an error."""
    return error_reply(error, STATUS[error.condition])


def probe_error(error: ServeError) -> ErrorReply:
    """Status, headers and body for a probe. One that is not ready is a 400, not a 503."""
    return error_reply(error, NOT_READY if error.condition == "E9" else STATUS[error.condition])
