"""The request log of an endpoint as the console shows it. Does not depend on routes or templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
from msgspec import field
from msgspec.structs import replace

from serve_app.console.views import Json
from serve_app.console.views.status import Status, Tone


class LoggedView(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are milliseconds; a body that is not shown is ""."""

    id: str = field(name="databricks_request_id")
    client_id: str = field(name="client_request_id", default="")
    time: int = field(name="request_time")
    status_code: int
    duration_ms: int = field(name="execution_duration_ms")
    first_token_ms: int | None = field(name="time_to_first_token_ms", default=None)
    prompt_tokens: int
    completion_tokens: int
    entity: str = field(name="served_entity_id")
    requester: str
    key: str = field(name="key_id")
    route: str
    request: str = ""
    response: str = ""
    missing: tuple[str, ...] = field(name="logging_error_codes", default=())  # why a body is missing

    @property
    def date(self) -> str:
        """The UTC day under which the request is logged."""
        return datetime.fromtimestamp(self.time / 1000, UTC).strftime("%Y-%m-%d")

    @property
    def status(self) -> Status:
        if self.status_code == 0:
            return Status("client left", Tone.IDLE)
        return Status(str(self.status_code), Tone.GOOD if 200 <= self.status_code < 300 else Tone.BAD)


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the log."""

    is_enabled: bool = field(name="enabled")
    rows: tuple[LoggedView, ...] = field(name="requests")
    next: str = field(name="next_page_token", default="")


def log_view(answer: Json) -> LogView:
    """The view of a page's JSON."""
    return msgspec.convert(answer, LogView)


def logged_view(row: Json) -> LoggedView:
    """The view of one request's JSON."""
    view = msgspec.convert(row, LoggedView)
    return replace(view, request=_pretty(view.request), response=_pretty(view.response))


def _pretty(text: str) -> str:
    """Indented JSON; any other text, such as the events of a stream, is returned as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
