"""The current load of one endpoint's entities: replicas, queue, and rates over the last minute. Independent
of routes."""

from __future__ import annotations

import msgspec

from serve_app.console.views import Json


class LoadView(msgspec.Struct, frozen=True, kw_only=True):
    """One served entity now. Replicas and queue are its application's, which other entities may share."""

    entity: str
    replicas: int | None = None  # None: the entity has no application any more
    running: int = 0
    waiting: int = 0
    kv_use: float | None = None
    in_flight: int
    requests_per_s: float
    tokens_per_s: float
    errors_per_s: float
    first_token_s: float | None  # median


def load_views(answer: Json, endpoint: str) -> list[LoadView]:
    """The views of one endpoint, from the JSON of live figures."""
    applications = {each["application"]: each for each in answer.get("applications", ())}
    found = [each for each in answer.get("endpoints", ()) if each["endpoint"] == endpoint]
    return [_load(entity, applications) for each in found for entity in each["entities"]]


def _load(entity: Json, applications: Json) -> LoadView:
    own, window = applications.get(entity["application"], {}), entity["window"]
    median = window["first_token_s"]["p50"]
    return msgspec.convert({**own, **window, "entity": entity["entity"], "first_token_s": median}, LoadView)
