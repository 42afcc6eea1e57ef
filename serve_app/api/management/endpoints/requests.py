"""The request log of an endpoint: those rows of its inference table that are in this gateway's folder.

Databricks has no such routes. The columns are named as in the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any, Final, NotRequired, cast

from typing_extensions import TypedDict

from serve_app.api.edge.query import flag, integer
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.operation import (
    ENDPOINT,
    OF_ENDPOINT,
    check_query,
    management,
    query_parameter,
)
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import Answer, Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.ai_gateway import InferenceTable
from serve_app.errors import InvalidField, ModelNotFound
from serve_app.limits import MAX_LOGGED_REQUESTS
from serve_app.types.request_log import LoggedRequests

_LIMIT: Final = 50


class RequestRowJson(TypedDict):
    """One request. `request_time` is in milliseconds."""

    databricks_request_id: str
    client_request_id: NotRequired[str]
    request_time: int
    status_code: int
    execution_duration_ms: int
    time_to_first_token_ms: NotRequired[int]
    served_entity_id: str
    requester: str
    key_id: str
    route: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class RequestJson(RequestRowJson):
    """One request with its bodies, as they were on the wire. A body that was not kept is left out."""

    request: NotRequired[str]
    response: NotRequired[str]
    logging_error_codes: list[str]


class RequestLogJson(TypedDict):
    """A page of requests, the newest first. `enabled`: whether requests are written now."""

    enabled: bool
    requests: list[RequestRowJson]
    next_page_token: NotRequired[str]


_DATE: Final = query_parameter("date", "Requests of this day (UTC) alone.", example="2026-03-01")
LIST: Final[Operation] = replace(
    management(
        "The newest requests to an endpoint",
        Answer(what="A page of them.", type=RequestLogJson),
        what="Out of its inference table. A request is there some seconds after it ended.",
        conditions=OF_ENDPOINT,
    ),
    parameters=(
        query_parameter(
            "limit", f"Requests at most: 1 to {MAX_LOGGED_REQUESTS}; {_LIMIT} unless given.", int
        ),
        query_parameter("page_token", "`next_page_token` of the page before."),
        query_parameter("failed", "Only requests without an answer of 2xx.", bool),
        _DATE,
    ),
)
GET: Final[Operation] = replace(
    management(
        "One request to an endpoint, with its bodies",
        Answer(what="The request.", type=RequestJson),
        conditions=OF_ENDPOINT,
    ),
    parameters=(_DATE,),
)


def routes(services: Services) -> Iterator[Entry]:
    """Both routes."""
    yield command_entry(services, "GET", f"{ENDPOINT}/requests", _list, LIST)
    yield command_entry(services, "GET", f"{ENDPOINT}/requests/{{request}}", _get, GET)


async def _list(asked: Asked[NoBody]) -> RequestLogJson:
    wanted, is_enabled = _wanted(asked)
    payloads = asked.services.payloads
    if payloads is None:
        return {"enabled": False, "requests": []}
    page = await asyncio.to_thread(payloads.page, wanted)
    shown: RequestLogJson = {"enabled": is_enabled, "requests": [_json(row) for row in page.rows]}
    if page.next:
        shown["next_page_token"] = page.next
    return shown


async def _get(asked: Asked[NoBody]) -> RequestJson:
    wanted, _ = _wanted(asked)
    payloads, id = asked.services.payloads, asked.path["request"]
    row = None if payloads is None else await asyncio.to_thread(payloads.row, wanted, id)
    if row is None:
        raise ModelNotFound("id", "there is no such request in the endpoint's inference table")
    return _json(row)


def _wanted(asked: Asked[NoBody]) -> tuple[LoggedRequests, bool]:
    """The query, and whether requests are written now. Raises InvalidField or ModelNotFound."""
    query = asked.query
    check_query(query, LIST)
    limit, is_failed = integer(query, "limit", 1, MAX_LOGGED_REQUESTS), flag(query, "failed")
    endpoint = asked.view.find(asked.path["endpoint"])
    table = endpoint.ai_gateway.inference_table_config or InferenceTable()
    wanted = LoggedRequests(
        folder=table.table(endpoint.name),
        endpoint=endpoint.name,
        limit=_LIMIT if limit is None else limit,
        after=query.get("page_token", ""),
        is_failed=is_failed,
        day=_day(query),
    )
    return wanted, table.enabled


def _day(query: Mapping[str, str]) -> date | None:
    if "date" not in query:
        return None
    try:
        return date.fromisoformat(query["date"])
    except ValueError:
        raise InvalidField("date", "must be a date, such as 2026-03-01") from None


def _json(row: Mapping[str, Any]) -> RequestJson:
    """The columns that are not null. A page's rows have no body columns."""
    shown = {name: _value(value) for name, value in row.items() if value is not None}
    return cast("RequestJson", shown)


def _value(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value
