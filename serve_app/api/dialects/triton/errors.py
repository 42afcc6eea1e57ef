"""Errors in Triton's shape, which is one string, and their status on gRPC. Depends on no route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.string_error import error_reply
from serve_app.errors import Condition, ServeError

NOT_READY: Final = 400  # the status of a probe that is not ready

# Names of grpc.StatusCode.
GRPC_STATUS: Final[Mapping[Condition, str]] = MappingProxyType(
    {
        Condition.INVALID_BODY: "INVALID_ARGUMENT",
        Condition.INVALID_FIELD: "INVALID_ARGUMENT",
        Condition.MODEL_NOT_FOUND: "NOT_FOUND",
        Condition.VERSION_NOT_FOUND: "NOT_FOUND",
        Condition.PROMPT_TOO_LONG: "INVALID_ARGUMENT",
        Condition.UNAUTHENTICATED: "UNAUTHENTICATED",
        Condition.PERMISSION_DENIED: "PERMISSION_DENIED",
        Condition.QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
        Condition.OVERLOADED: "UNAVAILABLE",
        Condition.UNAVAILABLE: "UNAVAILABLE",
        Condition.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
        Condition.ENGINE_REFUSED: "INTERNAL",
        Condition.GENERATION_FAILED: "INTERNAL",
        Condition.METHOD_NOT_ALLOWED: "UNIMPLEMENTED",
        Condition.BODY_TOO_LARGE: "INVALID_ARGUMENT",
        Condition.READ_TIMEOUT: "DEADLINE_EXCEEDED",
        Condition.ROUTE_NOT_FOUND: "UNIMPLEMENTED",
        Condition.ALREADY_EXISTS: "ALREADY_EXISTS",
        Condition.CONFLICT: "ABORTED",
        Condition.GUARDRAIL_TRIGGERED: "INVALID_ARGUMENT",
    }
)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body of an error."""
    return error_reply(error)


def probe_error(error: ServeError) -> ErrorReply:
    """Status, headers and body for a probe. A probe of something that is not ready gets a 400, not a 503."""
    return error_reply(error, NOT_READY if error.condition is Condition.UNAVAILABLE else None)
