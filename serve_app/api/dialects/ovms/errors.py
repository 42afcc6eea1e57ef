"""Errors in OpenVINO Model Server's shape, which is a string, and the base of the dialects that use it."""

from __future__ import annotations

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.string_error import error_reply
from serve_app.config import OvmsConfig
from serve_app.errors import Condition, ServeError


def render_error(error: ServeError, *, malformed_json: int = Condition.INVALID_BODY.status) -> ErrorReply:
    """Status, headers and body; `malformed_json` is the status of a body that is not a JSON object."""
    return error_reply(error, malformed_json if error.condition is Condition.INVALID_BODY else None)


class OvmsDialect:
    """The base of OpenVINO Model Server's dialects. A setting determines the status for malformed JSON."""

    stream_type = "text/event-stream"

    def __init__(self, config: OvmsConfig) -> None:
        self._config = config

    def render_error(self, error: ServeError) -> ErrorReply:
        return render_error(error, malformed_json=self._config.malformed_json_status)
