"""One route of the management API as the OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.api.dialects.databricks.routes import ERRORS
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.openapi.operation import READS_BODY, Answer, Body, Operation, Parameter
from serve_app.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidField,
    ModelNotFound,
    Overloaded,
    RouteNotFound,
    ServeError,
    Unavailable,
)

BASE: Final = "/api/2.0"
ENDPOINTS: Final = f"{BASE}/serving-endpoints"
ENDPOINT: Final = f"{ENDPOINTS}/{{endpoint:path}}"
ENTITY: Final = f"{ENDPOINT}/served-models/{{entity:path}}"
PERMISSIONS: Final = f"{BASE}/permissions/serving-endpoints/{{id}}"


TAG: Final = "Management"

# What every command may meet: no control plane in this server, or one that is away.
COMMANDS: Final[tuple[type[ServeError], ...]] = (
    *(RouteNotFound, InvalidField, Unavailable, DeadlineExceeded, Overloaded),
)
OF_ENDPOINT: Final[tuple[type[ServeError], ...]] = (*COMMANDS, ModelNotFound)
CHANGES: Final[tuple[type[ServeError], ...]] = (*READS_BODY, *OF_ENDPOINT, Conflict)


def management(
    summary: str,
    answer: Answer,
    *,
    what: str = "",
    body: type[StrictBody] | None = None,
    examples: dict[str, Any] | None = None,
    conditions: tuple[type[ServeError], ...] = OF_ENDPOINT,
) -> Operation:
    """One route of the management API."""
    return Operation(
        summary=summary,
        tag=TAG,
        what=what,
        bodies=() if body is None else (Body(type=body, examples=examples or {}),),
        answers=(answer,),
        errors=ERRORS,
        conditions=conditions,
        asks_model=False,
    )


def query_parameter(name: str, what: str, type: Any = str, example: Any = None) -> Parameter:
    return Parameter(name=name, place="query", type=type, what=what, example=example)


def check_query(query: Mapping[str, str], operation: Operation) -> None:
    """Raises InvalidField for a parameter that the operation does not have."""
    known = [each.name for each in operation.parameters if each.place == "query"]
    for name in query:
        if name not in known:
            raise InvalidField(name, f"is unknown here; known are {', '.join(known)}")
