"""Errors in Databricks' shape: one table maps conditions to codes. Depends on no route.

Clients of OpenAI's protocol also send requests below /serving-endpoints. Some clients (openai-node, the AI
SDK) read only the member `error`, so errors have that member besides Databricks' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import Condition, GuardrailTriggered, QuotaExceeded, ServeError

CODE: Final[Mapping[Condition, str]] = MappingProxyType(
    {
        Condition.INVALID_BODY: "BAD_REQUEST",
        Condition.INVALID_FIELD: "INVALID_PARAMETER_VALUE",
        Condition.MODEL_NOT_FOUND: "RESOURCE_DOES_NOT_EXIST",
        Condition.VERSION_NOT_FOUND: "RESOURCE_DOES_NOT_EXIST",
        Condition.PROMPT_TOO_LONG: "BAD_REQUEST",
        Condition.UNAUTHENTICATED: "UNAUTHENTICATED",
        Condition.PERMISSION_DENIED: "PERMISSION_DENIED",
        Condition.QUOTA_EXCEEDED: "REQUEST_LIMIT_EXCEEDED",
        Condition.OVERLOADED: "REQUEST_LIMIT_EXCEEDED",
        Condition.UNAVAILABLE: "TEMPORARILY_UNAVAILABLE",
        Condition.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
        Condition.ENGINE_REFUSED: "INTERNAL_ERROR",
        Condition.GENERATION_FAILED: "INTERNAL_ERROR",
        Condition.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
        Condition.BODY_TOO_LARGE: "MAX_REQUEST_SIZE_EXCEEDED",
        Condition.READ_TIMEOUT: "REQUEST_TIMEOUT",
        Condition.ROUTE_NOT_FOUND: "ENDPOINT_NOT_FOUND",
        Condition.ALREADY_EXISTS: "RESOURCE_ALREADY_EXISTS",
        Condition.CONFLICT: "RESOURCE_CONFLICT",
        Condition.GUARDRAIL_TRIGGERED: "BAD_REQUEST",
    }
)

# For a request that waiting does not help: it is larger than its whole limit, or its key's budget is spent.
# Databricks' SDK repeats every 429 and 503 until its own timeout, whatever the headers. The error code still
# marks the error as one about a limit.
NEVER_FITS: Final = 400
OVERLOADED: Final = 429  # the status of a full queue


def broken(error: ServeError) -> bytes:
    """The JSON of an error after the first byte; it is repeated under `error`, where OpenAI's SDKs look."""

    def encode(message: str) -> bytes:
        members = _members(error, message)
        return msgspec.json.encode({**members, "error": members})

    return bounded(error.message, encode)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. With a 429 or a 503, the headers say when to try again."""
    status = error.condition.status
    if isinstance(error, QuotaExceeded) and not error.retryable:
        status = NEVER_FITS
    elif error.condition is Condition.OVERLOADED:
        status = OVERLOADED

    def encode(message: str) -> bytes:
        members = _members(error, message)
        code = members["error_code"]
        read_by_openai = {"message": members["message"], "type": code, "param": error.param, "code": code}
        return msgspec.json.encode({**members, "error": read_by_openai})

    return ErrorReply(status, headers_of(error, status), bounded(error.message, encode))


def _members(error: ServeError, message: str) -> dict[str, str]:
    if isinstance(error, GuardrailTriggered):
        message = _guardrail_report(error)
    return {"error_code": CODE[error.condition], "message": message}


def _guardrail_report(error: GuardrailTriggered) -> str:
    """Databricks' own message: JSON in a string."""
    found = {
        "flagged": error.check != "pii",
        "categories": None,
        "category_scores": None,
        "pii_detection": True if error.check == "pii" else None,
        "anonymized_input": None,
    }
    report = {
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
        f"{error.side}_guardrail": [found],
        "finishReason": f"{error.side}_guardrail_triggered",
        "reason": error.message,
    }
    return msgspec.json.encode(report).decode()
