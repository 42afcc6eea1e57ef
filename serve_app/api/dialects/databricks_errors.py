"""Errors in Databricks' shape: one table from condition to status and code. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from serve_app.api.dialects.base import ErrorReply
from serve_app.api.ratelimit import whole_seconds
from serve_app.errors import ServeError
from serve_app.limits import MAX_ERROR_BYTES


class Row(NamedTuple):
    """How one condition looks on the wire."""

    status: int
    code: str
    close: bool = False  # unread input may remain, so the connection cannot be reused


TABLE: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "E1": Row(400, "BAD_REQUEST"),
        "E2": Row(400, "INVALID_PARAMETER_VALUE"),
        "E3": Row(404, "RESOURCE_DOES_NOT_EXIST"),
        "E4": Row(404, "RESOURCE_DOES_NOT_EXIST"),
        "E5": Row(400, "BAD_REQUEST"),
        "E6": Row(401, "UNAUTHENTICATED"),
        "E6b": Row(403, "PERMISSION_DENIED"),
        "E7": Row(429, "REQUEST_LIMIT_EXCEEDED"),
        "E8": Row(429, "REQUEST_LIMIT_EXCEEDED"),
        "E9": Row(503, "TEMPORARILY_UNAVAILABLE"),
        "E10": Row(504, "DEADLINE_EXCEEDED"),
        "E11": Row(500, "INTERNAL_ERROR"),
        "E12": Row(500, "INTERNAL_ERROR"),
        "E13": Row(405, "METHOD_NOT_ALLOWED"),
        "E14": Row(413, "MAX_REQUEST_SIZE_EXCEEDED", close=True),
        "E14b": Row(408, "REQUEST_TIMEOUT", close=True),
        "E15": Row(404, "ENDPOINT_NOT_FOUND"),
    }
)


def error_object(error: ServeError) -> dict[str, str]:
    """The error's members; as JSON they are shorter than MAX_ERROR_BYTES."""
    members = {"error_code": TABLE[error.condition].code, "message": error.message}
    if len(msgspec.json.encode(members)) < MAX_ERROR_BYTES:
        return members
    # Cut by characters: one takes at most six bytes of JSON.
    return {**members, "message": error.message[: MAX_ERROR_BYTES // 12]}


def broken(error: ServeError) -> bytes:
    """The JSON of an error after the first byte: also under `error`, where SDKs of OpenAI look for one."""
    members = error_object(error)
    event: dict[str, Any] = {**members, "error": members}
    return msgspec.json.encode(event)


def render_error(error: ServeError) -> ErrorReply:
    """Status, headers and body. 429 and 503 say when to come back."""
    row = TABLE[error.condition]
    headers = {"content-type": "application/json"}
    if row.status in (429, 503) and error.retryable:
        headers["retry-after"] = str(whole_seconds(error.retry_after_s or 1.0))
    if row.status == 401:
        headers["www-authenticate"] = "Bearer"
    if row.close:
        headers["connection"] = "close"
    return ErrorReply(row.status, headers, msgspec.json.encode(error_object(error)))
