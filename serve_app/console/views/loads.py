"""What the entities of one endpoint do now: replicas, queue and rates of the last minute. Knows no route."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.console.views import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """One served entity now. Replicas and queue are those of its application, which others may share."""

    entity: str
    replicas: int | None  # None: the entity has no application any more
    running: int
    waiting: int
    kv_use: float | None
    in_flight: int
    requests_per_s: float
    tokens_per_s: float
    errors_per_s: float
    first_token_s: float | None  # median


def load_views(answer: Json, endpoint: str) -> list[LoadView]:
    """The views of the JSON of live figures, for one endpoint."""
    applications = {each["application"]: each for each in answer.get("applications", ())}
    found = [each for each in answer.get("endpoints", ()) if each["endpoint"] == endpoint]
    return [
        _load(entity, applications.get(entity.get("application")))
        for each in found
        for entity in each["entities"]
    ]


def _load(entity: Json, application: Json | None) -> LoadView:
    window, own = entity["window"], application or {}
    return LoadView(
        entity=entity["entity"],
        replicas=own.get("replicas"),
        running=own.get("running", 0),
        waiting=own.get("waiting", 0),
        kv_use=own.get("kv_use"),
        in_flight=window["in_flight"],
        requests_per_s=window["requests_per_s"],
        tokens_per_s=window["tokens_per_s"],
        errors_per_s=window["errors_per_s"],
        first_token_s=window["first_token_s"]["p50"],
    )
