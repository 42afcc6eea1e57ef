"""Errors in OpenVINO Model Server's shape: one string. Knows no route."""

from __future__ import annotations

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.string_error import error_reply
from serve_app.errors import Condition, ServeError


def render_error(error: ServeError, *, malformed_json: int = Condition.INVALID_BODY.status) -> ErrorReply:
    """Status, headers and body; `malformed_json` is the status of a body that is not a JSON object."""
    return error_reply(error, malformed_json if error.condition is Condition.INVALID_BODY else None)
