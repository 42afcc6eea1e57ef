"""Endpoints as clients see them: from the registry and the cluster's state, or from the deploy file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from serve_app.control.endpoints.cluster import AppSeen, AppStatus
from serve_app.control.endpoints.state import Config, Entity, loaded
from serve_app.control.endpoints.tables import EndpointRow
from serve_app.endpoints.endpoint import Endpoint
from serve_app.types import control

_FIRST: Final = 1  # version of declared configurations: the deploy file has no version numbers


class Sights:
    """The known states of applications, from the cluster and from gateways."""

    def __init__(self, apps: Mapping[str, AppSeen], ready: frozenset[str]) -> None:
        self._apps = apps
        self._ready = ready

    def state(self, entity: Entity, *, is_serving: bool) -> tuple[control.EntityState, str]:
        if entity.spec is None:
            return self.of_operator(entity.app)
        seen = self._apps.get(entity.app)
        if seen is not None and seen.status is AppStatus.UP:
            return control.EntityState.READY, ""
        if seen is not None and seen.status is AppStatus.FAILED:
            return control.EntityState.FAILED, seen.message
        state = control.EntityState.RECOVERING if is_serving else control.EntityState.CREATING
        if is_serving and entity.app in self._ready:
            state = control.EntityState.READY  # it is changing its size, but answers
        return state, "" if seen is None else seen.message

    def of_operator(self, app: str) -> tuple[control.EntityState, str]:
        if app in self._ready:
            return control.EntityState.READY, ""
        return control.EntityState.RECOVERING, f"the operator's application {app} does not answer now"


def shown(row: EndpointRow, sights: Sights) -> control.EndpointShown:
    """An endpoint of the registry."""
    serving = None if row.serving is None else loaded(row.serving)
    pending = None if row.pending is None else loaded(row.pending)
    update = control.UpdateState(row.update_state)
    config = None if serving is None else _config(serving, sights, is_serving=True)
    return control.EndpointShown(
        name=row.name,
        id=row.id,
        kind=row.kind,
        task=row.task,
        creator=row.creator,
        created=row.created,
        updated=row.updated,
        pending_since=row.pending_since,
        is_ready=config is not None
        and any(each.state is control.EntityState.READY for each in config.entities),
        update=update,
        message=row.message,
        config=config,
        pending=None
        if pending is None
        else _config(
            pending, sights, is_serving=False, has_failed=update is control.UpdateState.UPDATE_FAILED
        ),
        description=row.description,
        tags=dict(row.tags),
        ai_gateway=dict(row.ai_gateway),
        shadow=row.shadow,
        stored=dict(row.stored),
    )


def declared_id(name: str) -> str:
    """The id of an endpoint in the deploy file, made from its name alone, so that it survives restarts."""
    return f"declared-{hashlib.sha256(name.encode()).hexdigest()[:23]}"


def declared(endpoint: Endpoint, sights: Sights) -> control.EndpointShown:
    """An endpoint of the deploy file."""
    entities = []
    for entity in endpoint.served_entities:
        state, message = sights.of_operator(entity.app)
        wanted = control.EntityWanted(
            entity_name=entity.model,
            entity_version=entity.version,
            name=entity.name,
            min_provisioned_throughput=entity.min_provisioned_throughput,
            max_provisioned_throughput=entity.max_provisioned_throughput,
        )
        entities.append(control.EntityShown(wanted=wanted, state=state, message=message))
    config = control.ConfigShown(version=_FIRST, entities=tuple(entities), traffic=dict(endpoint.traffic))
    return control.EndpointShown(
        name=endpoint.name,
        id=declared_id(endpoint.name),
        kind=endpoint.kind.value,
        task=endpoint.task.value,
        creator="",
        created=0.0,
        updated=0.0,
        is_ready=any(each.state is control.EntityState.READY for each in entities),
        update=control.UpdateState.NOT_UPDATING,
        config=config,
        ai_gateway=endpoint.ai_gateway.model_dump(mode="json", exclude_defaults=True),
        shadow=None if endpoint.shadow is None else endpoint.shadow.model_dump(mode="json"),
        declared=True,
    )


def _config(
    config: Config, sights: Sights, *, is_serving: bool, has_failed: bool = False
) -> control.ConfigShown:
    entities = []
    for entity in config.entities:
        state, message = sights.state(entity, is_serving=is_serving)
        if has_failed and state is not control.EntityState.FAILED:
            state = control.EntityState.ABORTED
        entities.append(
            control.EntityShown(
                wanted=entity.wanted,
                state=state,
                message=message,
                creator=entity.creator,
                created=entity.created,
            )
        )
    return control.ConfigShown(
        version=config.version,
        entities=tuple(entities),
        traffic=dict(config.traffic),
        stored=dict(config.stored),
    )
