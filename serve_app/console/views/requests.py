"""The request log of an endpoint as the console shows it. Knows no route and no template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from serve_app.console.views import Json
from serve_app.console.views.status import Status, Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedView:
    """One request. Times are milliseconds; a body that is not shown is ""."""

    id: str
    client_id: str
    time: int
    date: str  # of the time, UTC: where the log has it
    status: Status
    duration_s: float
    first_token_s: float | None
    prompt_tokens: int
    completion_tokens: int
    entity: str
    requester: str
    key: str
    route: str
    request: str
    response: str
    missing: tuple[str, ...]  # why a body is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A page of the log."""

    is_enabled: bool
    rows: tuple[LoggedView, ...]
    next: str


def log_view(answer: Json) -> LogView:
    """The view of a page's JSON."""
    return LogView(
        is_enabled=answer["enabled"],
        rows=tuple(map(logged_view, answer["requests"])),
        next=answer.get("next_page_token", ""),
    )


def logged_view(row: Json) -> LoggedView:
    """The view of one request's JSON."""
    first_ms = row.get("time_to_first_token_ms")
    return LoggedView(
        id=row["databricks_request_id"],
        client_id=row.get("client_request_id", ""),
        time=row["request_time"],
        date=datetime.fromtimestamp(row["request_time"] / 1000, UTC).strftime("%Y-%m-%d"),
        status=_status(row["status_code"]),
        duration_s=row["execution_duration_ms"] / 1000,
        first_token_s=None if first_ms is None else first_ms / 1000,
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        entity=row["served_entity_id"],
        requester=row["requester"],
        key=row["key_id"],
        route=row["route"],
        request=_pretty(row.get("request", "")),
        response=_pretty(row.get("response", "")),
        missing=tuple(row.get("logging_error_codes", ())),
    )


def _status(code: int) -> Status:
    if code == 0:
        return Status("client left", Tone.IDLE)
    return Status(str(code), Tone.GOOD if 200 <= code < 300 else Tone.BAD)


def _pretty(text: str) -> str:
    """JSON with line breaks; anything else, such as the events of a stream, as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
