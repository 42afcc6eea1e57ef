"""An endpoint as the console shows it. Times are milliseconds since 1970. Free of routes and templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.console.views import Json, status
from serve_app.console.views.config_form import shares_of
from serve_app.console.views.status import Status, Tone

_KINDS: Final = {
    "pay_per_token": "shared replicas",
    "provisioned_throughput": "own replicas",
}
_TASKS: Final = {
    "llm/v1/chat": "chat",
    "llm/v1/completions": "completions",
    "llm/v1/embeddings": "embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityView:
    """A served entity of one configuration."""

    name: str
    model: str
    version: str
    size: str  # purchased size in words; "" if replicas are shared
    scales_to_zero: bool
    share: int | None  # percent of the requests; None if the configuration states no share
    status: Status
    message: str

    @property
    def answers(self) -> bool:
        """Whether the entity can answer now."""
        return self.status.tone is Tone.GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """A configuration that serves the endpoint, or that is starting."""

    version: int
    entities: tuple[EntityView, ...]
    started: int | None  # when the update to it started, if it is starting

    @property
    def ready(self) -> int:
        """How many entities are up."""
        return sum(each.answers for each in self.entities)

    @property
    def split(self) -> tuple[EntityView, ...]:
        """The entities that get requests."""
        return tuple(each for each in self.entities if each.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """One endpoint, and what its viewer may do with it."""

    name: str
    id: str
    kind: str
    task: str  # "" while the first model is not up
    is_declared: bool
    may_manage: bool
    status: Status
    message: str
    is_busy: bool  # an update is under way: look again soon
    config: ConfigView | None  # the one that serves
    pending: ConfigView | None  # a configuration that is starting or has failed
    creator: str
    created: int
    updated: int
    description: str
    tags: tuple[tuple[str, str], ...]
    ai_gateway: str  # readable JSON; "" if nothing is set
    shadow: Mapping[str, Any] | None

    @property
    def is_changeable(self) -> bool:
        return self.may_manage and not self.is_declared

    @property
    def newest(self) -> ConfigView | None:
        """The configuration that serves, or if none serves yet, the one that is starting."""
        return self.config or self.pending

    @property
    def entity_names(self) -> list[str]:
        return [each.name for each in self.newest.entities] if self.newest else []


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model used by some endpoint, suggested in form fields for a model."""

    name: str
    version: str


def endpoint_view(endpoint: Json) -> EndpointView:
    """The view of one endpoint's JSON."""
    state = endpoint.get("state", {})
    kind: str = endpoint.get("kind", "")
    task: str = endpoint.get("task", "")
    config, pending = endpoint.get("config"), endpoint.get("pending_config")
    gateway = endpoint.get("ai_gateway") or {}
    return EndpointView(
        name=endpoint["name"],
        id=endpoint.get("id", ""),
        kind=_KINDS.get(kind, kind),
        task=_TASKS.get(task, task),
        is_declared=bool(endpoint.get("declared")),
        may_manage=endpoint.get("permission_level") == "CAN_MANAGE",
        status=status.of_endpoint(state),
        message=state.get("message", ""),
        is_busy=state.get("config_update") == "IN_PROGRESS",
        config=None if config is None else config_view(config),
        pending=None if pending is None else config_view(pending),
        creator=endpoint.get("creator", ""),
        created=endpoint.get("creation_timestamp", 0),
        updated=endpoint.get("last_updated_timestamp", 0),
        description=endpoint.get("description", ""),
        tags=tuple((tag["key"], tag.get("value", "")) for tag in endpoint.get("tags", ())),
        ai_gateway=json.dumps(gateway, indent=2, ensure_ascii=False) if gateway else "",
        shadow=endpoint.get("shadow"),
    )


def endpoint_views(answer: Json) -> list[EndpointView]:
    """The views of the list's JSON, sorted by name."""
    return sorted(map(endpoint_view, answer.get("endpoints", ())), key=lambda each: each.name)


def config_view(config: Json) -> ConfigView:
    shares = shares_of(config)
    return ConfigView(
        version=config.get("config_version", 0),
        entities=tuple(_entity(each, shares) for each in config.get("served_entities", ())),
        started=config.get("start_time"),
    )


def known_models(answer: Json) -> list[KnownModel]:
    """The models and versions of all endpoints, each once, from the JSON of the list."""
    found = {
        (entity["entity_name"], entity.get("entity_version", ""))
        for endpoint in answer.get("endpoints", ())
        for config in (endpoint.get("config"), endpoint.get("pending_config"))
        if config is not None
        for entity in config.get("served_entities", ())
    }
    return [KnownModel(name=name, version=version) for name, version in sorted(found)]


def size_of(entity: Json) -> str:
    """The purchased size of an entity, in words: `2 units`, `4 to 16 requests at once`."""
    parts: Iterable[str] = (
        _counted(entity.get("provisioned_model_units"), "unit"),
        _range(entity, "throughput", "tokens/s"),
        _range(entity, "concurrency", "requests at once"),
        f"{entity['workload_size']} workload" if entity.get("workload_size") else "",
    )
    return ", ".join(part for part in parts if part)


def _entity(entity: Json, shares: Mapping[str, int]) -> EntityView:
    state = entity.get("state", {})
    name = entity.get("name") or entity["entity_name"]
    return EntityView(
        name=name,
        model=entity["entity_name"],
        version=entity.get("entity_version", ""),
        size=size_of(entity),
        scales_to_zero=bool(entity.get("scale_to_zero_enabled")),
        share=shares.get(name),
        status=status.of_deployment(state),
        message=state.get("deployment_state_message", ""),
    )


def _counted(count: int | None, noun: str) -> str:
    return "" if count is None else f"{count:,} {noun}{'' if count == 1 else 's'}"


def _range(entity: Json, what: str, unit: str) -> str:
    low, high = entity.get(f"min_provisioned_{what}"), entity.get(f"max_provisioned_{what}")
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"at least {low:,} {unit}" if low is not None else f"at most {high:,} {unit}"
    return f"{low:,} {unit}" if low == high else f"{low:,} to {high:,} {unit}"
