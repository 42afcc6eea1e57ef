"""Errors in Databricks' shape: one table from condition to status and code. Knows no route.

Clients of OpenAI's protocol ask below /serving-endpoints, too. Some of them (openai-node, the AI SDK) read
nothing but `error`, so errors have that member beside Databricks' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.error_reply import bounded, headers_of
from serve_app.errors import GuardrailTriggered, QuotaExceeded, ServeError


class ErrorRow(NamedTuple):
    """How one condition looks on the wire."""

    status: int
    code: str


TABLE: Final[Mapping[str, ErrorRow]] = MappingProxyType(
    {
        "E1": ErrorRow(400, "BAD_REQUEST"),
        "E2": ErrorRow(400, "INVALID_PARAMETER_VALUE"),
        "E3": ErrorRow(404, "RESOURCE_DOES_NOT_EXIST"),
        "E4": ErrorRow(404, "RESOURCE_DOES_NOT_EXIST"),
        "E5": ErrorRow(400, "BAD_REQUEST"),
        "E6": ErrorRow(401, "UNAUTHENTICATED"),
        "E6b": ErrorRow(403, "PERMISSION_DENIED"),
        "E7": ErrorRow(429, "REQUEST_LIMIT_EXCEEDED"),
        "E8": ErrorRow(429, "REQUEST_LIMIT_EXCEEDED"),
        "E9": ErrorRow(503, "TEMPORARILY_UNAVAILABLE"),
        "E10": ErrorRow(504, "DEADLINE_EXCEEDED"),
        "E11": ErrorRow(500, "INTERNAL_ERROR"),
        "E12": ErrorRow(500, "INTERNAL_ERROR"),
        "E13": ErrorRow(405, "METHOD_NOT_ALLOWED"),
        "E14": ErrorRow(413, "MAX_REQUEST_SIZE_EXCEEDED"),
        "E14b": ErrorRow(408, "REQUEST_TIMEOUT"),
        "E15": ErrorRow(404, "ENDPOINT_NOT_FOUND"),
        "E16": ErrorRow(409, "RESOURCE_ALREADY_EXISTS"),
        "E17": ErrorRow(409, "RESOURCE_CONFLICT"),
        "E18": ErrorRow(400, "BAD_REQUEST"),
    }
)

# Of a request that waiting does not help: larger than its whole limit, or of a key whose budget is spent.
# Databricks' SDK repeats whatever is 429 or 503 until its own time is over, whichever headers come with it;
# the error code still makes it the type of a limit.
NEVER_FITS: Final = 400


def broken(error: ServeError) -> bytes:
    """The JSON of an error after the first byte: also under `error`, where SDKs of OpenAI look for one."""

    def encode(message: str) -> bytes:
        members = _members(error, message)
        return msgspec.json.encode({**members, "error": members})

    return bounded(error.message, encode)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. 429 and 503 say when to come back."""
    never_fits = isinstance(error, QuotaExceeded) and not error.retryable
    status = NEVER_FITS if never_fits else TABLE[error.condition].status

    def encode(message: str) -> bytes:
        members = _members(error, message)
        code = members["error_code"]
        read_by_openai = {"message": members["message"], "type": code, "param": error.param, "code": code}
        return msgspec.json.encode({**members, "error": read_by_openai})

    return ErrorReply(status, headers_of(error, status), bounded(error.message, encode))


def _members(error: ServeError, message: str) -> dict[str, str]:
    if isinstance(error, GuardrailTriggered):
        message = _guardrail_report(error)
    return {"error_code": TABLE[error.condition].code, "message": message}


def _guardrail_report(error: GuardrailTriggered) -> str:
    """What the product says in place of a message: JSON in a string."""
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
