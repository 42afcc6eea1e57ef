"""Finds, creates, changes and removes endpoints in the database, within the caller's transaction.

An endpoint has at most one update at a time. `serving` is the configuration that answers requests; `pending`
is one that is starting or has failed. Does not depend on the cluster.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from serve_app.config import first_problem
from serve_app.control import counters
from serve_app.control.endpoints.state import Config, Entity, dumped, loaded
from serve_app.control.endpoints.tables import EndpointRow, EventRow
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.endpoints.endpoint import Endpoint, Kind, ServedEntity, Task
from serve_app.errors import AlreadyExists, Conflict, InvalidField, ModelNotFound
from serve_app.types.control import UpdateState

MAX_EVENTS: Final = 500  # kept of an endpoint


def find(session: Session, name: str) -> EndpointRow:
    """Raises ModelNotFound."""
    row = session.scalar(select(EndpointRow).where(EndpointRow.name == name))
    if row is None:
        raise unknown(name)
    return row


def unknown(name: str) -> ModelNotFound:
    return ModelNotFound("name", f"there is no endpoint {name!r} that was made at run time")


def by_id(session: Session, id: str) -> EndpointRow | None:
    return session.get(EndpointRow, id)


def has(session: Session, name: str) -> bool:
    return session.scalar(select(EndpointRow.id).where(EndpointRow.name == name)) is not None


def settings(session: Session) -> dict[str, dict[str, Any]]:
    """The AI-gateway settings of all endpoints, by name."""
    return dict(session.execute(select(EndpointRow.name, EndpointRow.ai_gateway)).tuples().all())


def entities(session: Session, endpoint: str) -> tuple[Entity, ...]:
    """The served entities that answer for an endpoint. Raises ModelNotFound; Conflict if there are none."""
    return _serving(find(session, endpoint)).entities


def traffic(session: Session, endpoint: str) -> dict[str, int]:
    """The traffic split that is in force. Same errors as `entities`."""
    return dict(_serving(find(session, endpoint)).traffic)


def set_traffic(session: Session, endpoint: str, traffic: dict[str, int]) -> None:
    """Change the split in place: entities, version and replicas stay. Raises InvalidField, Conflict."""
    row = find(session, endpoint)
    refuse_busy(row)
    made = replace(_serving(row), traffic=dict(traffic))
    check(row, made, shadow=row.shadow)
    row.serving = dumped(made)
    row.updated = time.time()


def set_shadow(session: Session, endpoint: str, shadow: Shadow | None) -> None:
    """Copy a share of the requests to another entity; None ends the copying. Same errors as `set_traffic`."""
    row = find(session, endpoint)
    refuse_busy(row)
    raw = None if shadow is None else shadow.model_dump(mode="json")
    check(row, _serving(row), shadow=raw)
    row.shadow = raw
    row.updated = time.time()


def add(
    session: Session,
    *,
    name: str,
    kind: Kind,
    task: str | None,
    creator: str,
    config: Config,
    description: str,
    tags: dict[str, str],
    ai_gateway: dict[str, Any],
    stored: dict[str, Any],
) -> EndpointRow:
    """Create an endpoint, and let its first configuration start. Raises AlreadyExists, InvalidField."""
    if has(session, name):
        raise AlreadyExists(f"the endpoint {name!r} exists already; update it, or choose another name")
    now = time.time()
    row = EndpointRow(
        id=secrets.token_hex(16),
        name=name,
        kind=kind.value,
        task=task,
        creator=creator,
        created=now,
        updated=now,
        description=description,
        tags=tags,
        ai_gateway=ai_gateway,
        shadow=None,
        stored=stored,
        serving=None,
        pending=dumped(config),
        config_version=config.version,
        update_state=UpdateState.IN_PROGRESS.value,
        message="",
        pending_since=now,
        switch_version=0,
    )
    check(row, config, shadow=None)
    session.add(row)
    session.flush()
    note(session, row, f"created with configuration {config.version}: {_words(config)}")
    return row


def begin_update(session: Session, row: EndpointRow, config: Config, *, task: str | None = None) -> None:
    """Start a new configuration beside the one that serves. Raises Conflict, InvalidField."""
    refuse_busy(row)
    check(row, config, shadow=_kept_shadow(row, config), task=task)
    row.pending = dumped(config)
    row.config_version = config.version
    row.update_state = UpdateState.IN_PROGRESS.value
    row.message = ""
    row.pending_since = row.updated = time.time()
    row.switch_version = 0
    note(session, row, f"configuration {config.version} comes up: {_words(config)}")


def promote(session: Session, row: EndpointRow, *, task: str) -> None:
    """Let the pending configuration serve; the update ends once gateways have adopted it.

    Raises InvalidField if gateways would reject the endpoint because of its models' task.
    """
    if row.pending is None:
        return
    config = loaded(row.pending)
    check(row, config, shadow=_kept_shadow(row, config), task=task)
    before = None if row.serving is None else served(row, loaded(row.serving))
    row.shadow = _kept_shadow(row, config)
    row.task = task
    row.kind = config.kind or row.kind
    row.serving, row.pending = row.pending, None
    row.updated = time.time()
    if served(row, config) == before:  # only sizes differ, so no snapshot will
        settle(session, row)
        return
    row.switch_version = counters.current(session, counters.SNAPSHOT) + 1
    note(session, row, f"configuration {config.version} is up; gateways take it")


def settle(session: Session, row: EndpointRow) -> None:
    """Record that all gateways route by the newest configuration."""
    row.switch_version = 0
    row.update_state = UpdateState.NOT_UPDATING.value
    note(session, row, f"configuration {row.config_version} serves")


def fail(session: Session, row: EndpointRow, message: str) -> None:
    """Abandon the pending configuration. The former configuration goes on serving."""
    row.update_state = UpdateState.UPDATE_FAILED.value
    row.message = message
    row.updated = time.time()
    note(session, row, f"configuration {row.config_version} failed: {message}")


def remove(session: Session, row: EndpointRow) -> None:
    """Delete an endpoint, whatever its state."""
    session.execute(delete(EventRow).where(EventRow.endpoint_id == row.id))
    session.delete(row)


def note(session: Session, row: EndpointRow, text: str) -> None:
    """Record an event for the build logs; the oldest ones are dropped."""
    session.add(EventRow(endpoint_id=row.id, at=time.time(), text=text))
    session.flush()
    newest = session.scalar(select(func.max(EventRow.id)).where(EventRow.endpoint_id == row.id)) or 0
    session.execute(
        delete(EventRow).where(EventRow.endpoint_id == row.id, EventRow.id <= newest - MAX_EVENTS)
    )


def events(session: Session, row: EndpointRow) -> list[tuple[float, str]]:
    """The events of an endpoint in order, each as a time and a text."""
    rows = session.scalars(select(EventRow).where(EventRow.endpoint_id == row.id).order_by(EventRow.id))
    return [(each.at, each.text) for each in rows]


def refuse_busy(row: EndpointRow) -> None:
    """Raises Conflict while an update of the endpoint is in progress."""
    if row.update_state == UpdateState.IN_PROGRESS.value:
        raise Conflict(
            f"the endpoint {row.name!r} is being updated; wait until config_update is NOT_UPDATING"
        )


def check(
    row: EndpointRow, config: Config, *, shadow: dict[str, Any] | None, task: str | None = None
) -> Endpoint:
    """The endpoint with the configuration `config`, in the form for gateways. Raises InvalidField if gateways
    would reject it."""
    raw = {**served(row, config, task=task), "shadow": shadow}
    try:
        return Endpoint.model_validate(raw)
    except ValidationError as error:
        raise InvalidField(None, _first(error)) from None


def served(row: EndpointRow, config: Config, *, task: str | None = None) -> dict[str, Any]:
    """An endpoint with one of its configurations, as plain values of `endpoints.endpoint.Endpoint`."""
    kind = config.kind or row.kind
    made = {
        "name": row.name,
        "task": task or row.task or Task.CHAT.value,
        "kind": kind,
        "served_entities": [_entity(each, kind).model_dump(mode="json") for each in config.entities],
        "traffic": config.traffic,
        "ai_gateway": row.ai_gateway,
    }
    return made if row.shadow is None else {**made, "shadow": row.shadow}


def _entity(entity: Entity, kind: str) -> ServedEntity:
    is_bought = kind == Kind.PROVISIONED.value
    try:
        return ServedEntity(
            model=entity.model,
            version=entity.version,
            name=entity.wanted.name,
            app=entity.app,
            min_provisioned_throughput=entity.min_throughput if is_bought else None,
            max_provisioned_throughput=entity.max_throughput if is_bought else None,
        )
    except ValidationError as error:
        raise InvalidField("served_entities", _first(error)) from None


def _kept_shadow(row: EndpointRow, config: Config) -> dict[str, Any] | None:
    """The endpoint's shadow, unless its entity is missing from `config`."""
    names = {each.wanted.name for each in config.entities}
    return None if row.shadow is None or row.shadow["entity"] not in names else row.shadow


def _serving(row: EndpointRow) -> Config:
    if row.serving is None:
        raise Conflict(f"the endpoint {row.name!r} has no configuration that serves yet")
    return loaded(row.serving)


def _words(config: Config) -> str:
    return ", ".join(
        f"{each.wanted.name} ({config.traffic.get(each.wanted.name, 0)} %) in {each.app}"
        for each in config.entities
    )


def _first(error: ValidationError) -> str:
    """The first problem found by a validation, with its field."""
    path, message = first_problem(error)
    return f"{path}: {message}" if path else message
