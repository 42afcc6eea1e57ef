"""The routes of endpoints as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.databricks.operations import ERRORS
from serve_app.api.management.answers import EndpointJson, EndpointListJson, Nothing, Tags
from serve_app.api.management.endpoints.config_body import UpdateBody
from serve_app.api.management.endpoints.create_body import CreateBody, CreateProvisionedBody, ProvisionedBody
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.openapi.operation import READS_BODY, Answer, Body, Operation
from serve_app.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InvalidField,
    ModelNotFound,
    Overloaded,
    RouteNotFound,
    ServeError,
    Unavailable,
)

TAG: Final = "Management"

# What every command may meet: no control plane in this server, or one that is away.
COMMANDS: Final[tuple[type[ServeError], ...]] = (
    *(RouteNotFound, InvalidField, Unavailable, DeadlineExceeded, Overloaded),
)
OF_ENDPOINT: Final[tuple[type[ServeError], ...]] = (*COMMANDS, ModelNotFound)
CHANGES: Final[tuple[type[ServeError], ...]] = (*READS_BODY, *OF_ENDPOINT, Conflict)

_ENTITY: Final = {"entity_name": "harbor-8b", "entity_version": "2"}
_UNITS: Final = {**_ENTITY, "provisioned_model_units": 50}


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


_SHOWN: Final = Answer(what="The endpoint.", type=EndpointJson)
_COMES_UP: Final = Answer(what="The endpoint, before its new configuration is up.", type=EndpointJson)

LIST: Final = management(
    "All endpoints", Answer(what="The list.", type=EndpointListJson), conditions=COMMANDS
)
GET: Final = management(
    "One endpoint",
    _SHOWN,
    what="Poll it until `state.config_update` is `NOT_UPDATING` or `UPDATE_FAILED`.",
)
CREATE: Final = management(
    "Make an endpoint",
    _COMES_UP,
    what="An entity with bought units, throughput, concurrency or a size has replicas of its own. Without "
    "any of these the endpoint uses replicas that the operator has declared.",
    body=CreateBody,
    examples={"one model": {"name": "harbor-chat", "config": {"served_entities": [_ENTITY]}}},
    conditions=(*READS_BODY, *COMMANDS, ModelNotFound, AlreadyExists, Conflict),
)
CREATE_PT: Final = management(
    "Make an endpoint with bought throughput",
    _COMES_UP,
    body=CreateProvisionedBody,
    examples={"50 units": {"name": "harbor-chat", "config": {"served_entities": [_UNITS]}}},
    conditions=(*READS_BODY, *COMMANDS, ModelNotFound, AlreadyExists, Conflict),
)
UPDATE: Final = management(
    "Replace what answers",
    _COMES_UP,
    what="The former configuration serves until the new one is ready. With `traffic_config` alone the "
    "entities stay.",
    body=UpdateBody,
    examples={
        "two versions": {
            "served_entities": [
                {"name": "old", "entity_name": "harbor-8b", "entity_version": "1"},
                {"name": "new", **_ENTITY},
            ],
            "traffic_config": {
                "routes": [
                    {"served_entity_name": "old", "traffic_percentage": 90},
                    {"served_entity_name": "new", "traffic_percentage": 10},
                ]
            },
        }
    },
    conditions=CHANGES,
)
UPDATE_PT: Final = management(
    "Replace what answers, with bought throughput",
    _COMES_UP,
    body=ProvisionedBody,
    examples={"100 units": {"config": {"served_entities": [{**_UNITS, "provisioned_model_units": 100}]}}},
    conditions=CHANGES,
)
DELETE: Final = management(
    "Remove an endpoint",
    Answer(what="It is gone; its requests are answered to their end.", type=Nothing),
    conditions=(*OF_ENDPOINT, Conflict),
)
TAGS_ANSWER: Final = Answer(what="All tags.", type=Tags)
