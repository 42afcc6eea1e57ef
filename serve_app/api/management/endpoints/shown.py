"""An endpoint as Databricks' API shows it: plain values for JSON. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, cast

from serve_app.api.management import answers
from serve_app.endpoints.endpoint import Kind, Task
from serve_app.types import Caller, Scope
from serve_app.types.control import ConfigShown, EndpointShown, EntityShown, EntityWanted

_UNSAID: Final = frozenset({"stored"})


def endpoint_json(shown: EndpointShown, caller: Caller) -> answers.EndpointJson:
    """One endpoint. `kind`, `declared` and `shadow` are this server's own additions."""
    state: answers.StateJson = {
        "ready": "READY" if shown.is_ready else "NOT_READY",
        "config_update": shown.update.value,
    }
    if shown.message:
        state["message"] = shown.message
    found: answers.EndpointJson = {
        "name": shown.name,
        "id": shown.id,
        "creator": shown.creator,
        "creation_timestamp": milliseconds(shown.created),
        "last_updated_timestamp": milliseconds(shown.updated),
        "endpoint_type": "FOUNDATION_MODEL_API",
        "kind": Kind(shown.kind),
        "declared": shown.declared,
        "state": state,
        "description": shown.description,
        "tags": tags_json(shown),
        "ai_gateway": cast(answers.SettingsJson, shown.ai_gateway),
        "permission_level": "CAN_MANAGE" if Scope.MANAGE in caller.scopes else "CAN_QUERY",
    }
    if shown.task is not None:
        found["task"] = Task(shown.task)
    if shown.config is not None:
        found["config"] = _config(shown.config)
    if shown.shadow is not None:
        found["shadow"] = cast(answers.ShadowJson, shown.shadow)
    if shown.pending is not None:
        since = milliseconds(shown.pending_since)
        found["pending_config"] = {**_config(shown.pending), "start_time": since}
    return cast(answers.EndpointJson, {**shown.stored, **found})


def tags_json(shown: EndpointShown) -> list[answers.Tag]:
    """The tags of an endpoint, by key."""
    return [{"key": key, "value": value} for key, value in sorted(shown.tags.items())]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _config(config: ConfigShown) -> answers.ConfigJson:
    routes = [
        {"served_model_name": name, "served_entity_name": name, "traffic_percentage": share}
        for name, share in config.traffic.items()
    ]
    known = {
        "config_version": config.version,
        "served_entities": [_entity(each) for each in config.entities],
        "traffic_config": {"routes": routes},
    }
    return cast(answers.ConfigJson, {**config.stored, **known})


def _entity(shown: EntityShown) -> answers.EntityJson:
    state: answers.EntityStateJson = {"deployment": shown.state.value}
    if shown.message:
        state["deployment_state_message"] = shown.message
    made = {"creator": shown.creator, "creation_timestamp": milliseconds(shown.created), "state": state}
    return cast(answers.EntityJson, {**_wanted(shown.wanted), **made})


def _wanted(wanted: EntityWanted) -> dict[str, Any]:
    """The creator's fields, under the names of the API; missing fields are left out."""
    said = {each.name: getattr(wanted, each.name) for each in fields(wanted) if each.name not in _UNSAID}
    return {**wanted.stored, **{name: value for name, value in said.items() if value not in (None, "")}}
