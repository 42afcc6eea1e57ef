"""Making, changing, showing and removing endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from serve_app.api.management.answers import EndpointJson, EndpointListJson, Nothing
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.endpoints.config_body import UpdateBody
from serve_app.api.management.endpoints.create_body import CreateBody, CreateProvisionedBody, ProvisionedBody
from serve_app.api.management.endpoints.shown import endpoint_json
from serve_app.api.management.operation import CHANGES, COMMANDS, ENDPOINT, ENDPOINTS, OF_ENDPOINT, management
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import READS_BODY, Answer
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import AlreadyExists, Conflict, FieldError, ModelNotFound
from serve_app.types import Scope
from serve_app.types.control import (
    ConfigShown,
    ConfigWanted,
    DeleteEndpoint,
    GetEndpoint,
    ListEndpoints,
    UpdateConfig,
)

_PT: Final = f"{ENDPOINTS}/pt"
_READERS: Final = (Scope.INFERENCE, Scope.MANAGE)
_INDEX: Final = re.compile(r"\[(\d+)\]")
_ENTITY: Final = {"entity_name": "harbor-8b", "entity_version": "2"}
_UNITS: Final = {**_ENTITY, "provisioned_model_units": 50}
_SHOWN: Final = Answer(what="The endpoint.", type=EndpointJson)
_COMES_UP: Final = Answer(what="The endpoint, before its new configuration is up.", type=EndpointJson)

_LIST: Final = management(
    "All endpoints", Answer(what="The list.", type=EndpointListJson), conditions=COMMANDS
)
_GET: Final = management(
    "One endpoint",
    _SHOWN,
    what="Poll it until `state.config_update` is `NOT_UPDATING` or `UPDATE_FAILED`.",
)
_CREATE: Final = management(
    "Make an endpoint",
    _COMES_UP,
    what="An entity with bought units, throughput, concurrency or a size has replicas of its own. Without "
    "any of these the endpoint uses replicas that the operator has declared.",
    body=CreateBody,
    examples={"one model": {"name": "harbor-chat", "config": {"served_entities": [_ENTITY]}}},
    conditions=(*READS_BODY, *COMMANDS, ModelNotFound, AlreadyExists, Conflict),
)
_CREATE_PT: Final = management(
    "Make an endpoint with bought throughput",
    _COMES_UP,
    body=CreateProvisionedBody,
    examples={"50 units": {"name": "harbor-chat", "config": {"served_entities": [_UNITS]}}},
    conditions=(*READS_BODY, *COMMANDS, ModelNotFound, AlreadyExists, Conflict),
)
_UPDATE: Final = management(
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
_UPDATE_PT: Final = management(
    "Replace what answers, with bought throughput",
    _COMES_UP,
    body=ProvisionedBody,
    examples={"100 units": {"config": {"served_entities": [{**_UNITS, "provisioned_model_units": 100}]}}},
    conditions=CHANGES,
)
_DELETE: Final = management(
    "Remove an endpoint",
    Answer(what="It is gone; its requests are answered to their end.", type=Nothing),
    conditions=(*OF_ENDPOINT, Conflict),
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of endpoints except those of `last_routes`."""
    entry = partial(command_entry, services)
    for path in (ENDPOINTS, f"{ENDPOINTS}/"):  # MLflow's client asks with a slash
        yield entry("GET", path, _list, _LIST, *_READERS)
        yield entry("POST", path, _create, _CREATE)
    yield entry("POST", _PT, _create, _CREATE_PT)
    yield entry("PUT", f"{_PT}/{{endpoint:path}}/config", _update_provisioned, _UPDATE_PT)
    yield entry("PUT", f"{ENDPOINT}/config", _update, _UPDATE)


def last_routes(services: Services) -> Iterator[Entry]:
    """One endpoint by its name. Names may have slashes, so these routes follow all routes below a name."""
    yield command_entry(services, "GET", ENDPOINT, _get, _GET, *_READERS)
    yield command_entry(services, "DELETE", ENDPOINT, _delete, _DELETE)


async def _list(asked: Asked[NoBody]) -> EndpointListJson:
    listed = await asked.do(ListEndpoints())
    seen = [shown for shown in listed.endpoints if asked.view.shows(shown.name)]
    return {"endpoints": [endpoint_json(shown, asked.caller) for shown in seen]}


async def _get(asked: Asked[NoBody]) -> EndpointJson:
    return endpoint_json(await asked.endpoint(), asked.caller)


async def _create(asked: Asked[CreateBody | CreateProvisionedBody]) -> EndpointJson:
    with _in_words_of_body("config."):
        return endpoint_json(await asked.do(asked.body.command()), asked.caller)


async def _update(asked: Asked[UpdateBody]) -> EndpointJson:
    with _in_words_of_body(""):
        return await _updated(asked, asked.body)


async def _update_provisioned(asked: Asked[ProvisionedBody]) -> EndpointJson:
    with _in_words_of_body("config."):
        return await _updated(asked, asked.body.checked_config())


async def _delete(asked: Asked[NoBody]) -> Nothing:
    await asked.do(DeleteEndpoint(name=asked.path["endpoint"]))
    return {}


async def _updated(asked: Asked[Any], body: UpdateBody) -> EndpointJson:
    """A body may name only entities or only traffic; the rest stays unchanged."""
    name, former = asked.path["endpoint"], None
    if not body.is_whole:
        shown = await asked.do(GetEndpoint(name=name))
        former = _wanted_of(shown.config or shown.pending)
    updated = await asked.do(UpdateConfig(name=name, config=body.wanted(former)))
    return endpoint_json(updated, asked.caller)


def _wanted_of(config: ConfigShown | None) -> ConfigWanted | None:
    if config is None:
        return None
    return ConfigWanted(
        entities=tuple(each.wanted for each in config.entities), traffic=config.traffic, stored=config.stored
    )


@contextmanager
def _in_words_of_body(prefix: str) -> Iterator[None]:
    """In errors about a configuration, use the body's names of fields: `config.served_entities.0`."""
    try:
        yield
    except FieldError as error:
        if error.param is None or not error.param.startswith(("served_entities", "traffic_config")):
            raise
        raise error.renamed(prefix + _INDEX.sub(r".\1", error.param)) from error
