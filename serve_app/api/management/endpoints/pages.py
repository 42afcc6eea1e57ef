"""Pages of one endpoint: logs of its entities, its metrics, and its own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec

from serve_app.api.management.answers import LogsJson
from serve_app.api.management.command_route import Asked, Page, command_entry
from serve_app.api.management.endpoints.document import endpoint_document
from serve_app.api.management.operation import ENDPOINT, ENTITY, management
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import TEXT, Answer
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Task
from serve_app.errors import Unavailable
from serve_app.telemetry import CONTENT_TYPE
from serve_app.types import Scope
from serve_app.types.control import ReadLogs

_LOGS: Final = management(
    "What the replicas of a served entity logged",
    Answer(what="The newest lines.", type=LogsJson),
)
_BUILD_LOGS: Final = management(
    "What happened to a served entity while it came up",
    Answer(what="The newest lines.", type=LogsJson),
)
_METRICS: Final = management(
    "Metrics of one endpoint in Prometheus' text format",
    Answer(what="The metrics.", type=str, media=TEXT),
    what="Those of `/metrics` that have the endpoint's name, or an application of its models, as a label.",
)
_OPENAPI: Final = management(
    "The OpenAPI document of one endpoint",
    Answer(what="The document.", type=dict[str, Any]),
    what="How the endpoint is queried: its task alone.",
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    get = partial(command_entry, services, "GET")
    yield get(f"{ENTITY}/build-logs", partial(_logs, is_build=True), _BUILD_LOGS)
    yield get(f"{ENTITY}/logs", _logs, _LOGS)
    yield get(f"{ENDPOINT}/metrics", _metrics, _METRICS, Scope.METRICS, Scope.MANAGE)
    yield get(f"{ENDPOINT}/openapi", _openapi, _OPENAPI, Scope.INFERENCE, Scope.MANAGE)


async def _logs(asked: Asked[NoBody], *, is_build: bool = False) -> LogsJson:
    name, entity = asked.path["endpoint"], asked.path["entity"]
    return {"logs": (await asked.do(ReadLogs(name=name, entity=entity, is_build=is_build))).text}


async def _metrics(asked: Asked[NoBody]) -> Page:
    shown = await asked.endpoint()
    endpoint = asked.services.directory.named(shown.name)  # None: it is not up yet
    apps = set() if endpoint is None else {each.app for each in endpoint.served_entities}
    return Page(body=asked.services.metrics.render_endpoint(shown.name, apps), media=CONTENT_TYPE)


async def _openapi(asked: Asked[NoBody]) -> Page:
    shown = await asked.endpoint()
    config = shown.config or shown.pending
    if shown.task is None or config is None:
        raise Unavailable(
            "the task of the endpoint is known once its first model is up; try again", retry_after_s=2.0
        )
    entities = [each.wanted.name for each in config.entities]
    document = endpoint_document(shown.name, Task(shown.task), entities)
    return Page(body=msgspec.json.encode(document), media="application/json")
