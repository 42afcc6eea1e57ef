"""An endpoint as Databricks' API shows it: plain values for JSON. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from serve_app.api.management.answers import Tag
from serve_app.types import Caller, Scope
from serve_app.types.control import ConfigShown, EndpointShown, EntityShown, EntityWanted

_TYPE: Final = "FOUNDATION_MODEL_API"
_UNSAID: Final = frozenset({"stored"})


def endpoint_json(shown: EndpointShown, caller: Caller) -> dict[str, Any]:
    """One endpoint. `kind`, `declared` and `shadow` are this server's own."""
    found: dict[str, Any] = {
        **shown.stored,
        "name": shown.name,
        "id": shown.id,
        "creator": shown.creator,
        "creation_timestamp": milliseconds(shown.created),
        "last_updated_timestamp": milliseconds(shown.updated),
        "endpoint_type": _TYPE,
        "kind": shown.kind,
        "declared": shown.declared,
        "state": {
            "ready": "READY" if shown.is_ready else "NOT_READY",
            "config_update": str(shown.update),
            **({"message": shown.message} if shown.message else {}),
        },
        "description": shown.description,
        "tags": tags_json(shown),
        "ai_gateway": shown.ai_gateway,
        "permission_level": "CAN_MANAGE" if Scope.MANAGE in caller.scopes else "CAN_QUERY",
    }
    if shown.task is not None:
        found["task"] = shown.task
    if shown.config is not None:
        found["config"] = _config(shown.config)
    if shown.shadow is not None:
        found["shadow"] = shown.shadow
    if shown.pending is not None:
        found["pending_config"] = {**_config(shown.pending), "start_time": milliseconds(shown.pending_since)}
    return found


def tags_json(shown: EndpointShown) -> list[Tag]:
    """The tags of an endpoint, by key."""
    return [{"key": key, "value": value} for key, value in sorted(shown.tags.items())]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _config(config: ConfigShown) -> dict[str, Any]:
    return {
        **config.stored,
        "config_version": config.version,
        "served_entities": [_entity(each) for each in config.entities],
        "traffic_config": {
            "routes": [
                {"served_model_name": name, "served_entity_name": name, "traffic_percentage": share}
                for name, share in config.traffic.items()
            ]
        },
    }


def _entity(shown: EntityShown) -> dict[str, Any]:
    return {
        **_wanted(shown.wanted),
        "creator": shown.creator,
        "creation_timestamp": milliseconds(shown.created),
        "state": {
            "deployment": str(shown.state),
            **({"deployment_state_message": shown.message} if shown.message else {}),
        },
    }


def _wanted(wanted: EntityWanted) -> dict[str, Any]:
    """The creator's fields, under the names of the API; missing ones are left out."""
    said = {each.name: getattr(wanted, each.name) for each in fields(wanted) if each.name not in _UNSAID}
    return {**wanted.stored, **{name: value for name, value in said.items() if value not in (None, "")}}
