"""The task of an endpoint: chat, completions or embeddings. All its entities share it."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.control.endpoints.state import Config, Entity
from serve_app.control.endpoints.tables import EndpointRow
from serve_app.endpoints.endpoint import Endpoint, Task
from serve_app.errors import InvalidField
from serve_app.types import ModelInfo


class TaskProblem(Exception):
    """The entities of a configuration differ in task, from each other or from the endpoint."""


def task_of(
    row: EndpointRow, config: Config, infos: Mapping[str, ModelInfo], declared: Mapping[str, Endpoint]
) -> str:
    """The endpoint's task, now that its models are up. `infos`: models, by application. Raises
    TaskProblem."""
    known = declared_tasks(declared)
    wanted = row.task
    for entity in config.entities:
        info = infos.get(entity.app)
        able = _able(info) if info is not None else known.get((entity.model, entity.version))
        if able is None:
            continue
        if wanted is None:
            wanted = able[0]
        elif wanted not in able:
            raise TaskProblem(
                f"served entity {entity.wanted.name!r} does {' and '.join(able)}, and the endpoint {wanted}: "
                "all entities of an endpoint have its task"
            )
    return wanted or Task.CHAT.value


def check_tasks(config: Config, task: str | None, declared: Mapping[str, Endpoint]) -> None:
    """Raise at once if entities are already known to differ in task. Raises InvalidField."""
    if task is not None and task not in set(Task):
        raise InvalidField("task", f"must be one of {', '.join(Task)}")
    known = declared_tasks(declared)
    former: Entity | None = None
    does = ""  # the former task
    for entity in config.entities:
        able = known.get((entity.model, entity.version))
        if able is None:
            continue
        if task is not None and task not in able:
            raise InvalidField("task", f"{entity.model!r} does {' and '.join(able)}, not {task}")
        if former is not None and does not in able:
            raise InvalidField(
                "served_entities",
                f"{former.wanted.name!r} and {entity.wanted.name!r} have different tasks; all entities of "
                "an endpoint have the same",
            )
        former, does = entity, able[0]


def declared_tasks(declared: Mapping[str, Endpoint]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The tasks of the models of the deploy file: (model, version) -> tasks."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for endpoint in declared.values():
        for entity in endpoint.served_entities:
            key = entity.model, entity.version
            generates = (Task.CHAT.value, Task.COMPLETIONS.value)
            able: tuple[str, ...] = (endpoint.task.value,)
            if endpoint.task is not Task.EMBEDDINGS:  # a model that chats completes too
                able = (endpoint.task.value, *(each for each in generates if each != endpoint.task.value))
            found.setdefault(key, able)
    return found


def _able(info: ModelInfo) -> tuple[str, ...]:
    """The tasks of a model, the best-suited one first."""
    if info.dimensions is not None:
        return (Task.EMBEDDINGS.value,)
    if info.has_chat_template:
        return Task.CHAT.value, Task.COMPLETIONS.value
    return (Task.COMPLETIONS.value,)
