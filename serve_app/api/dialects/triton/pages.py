"""KServe's pages below /v2: liveness, readiness, the tensors of models, and their statistics.

A version is a served entity of the endpoint. An entity without a version counts as version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.context import context_of
from serve_app.api.dialects.triton import answers
from serve_app.api.dialects.triton.aliases import meaning
from serve_app.api.dialects.triton.description import SHAPES, config_parameters
from serve_app.api.dialects.triton.errors import NOT_READY, probe_error
from serve_app.api.dialects.triton.metadata import (
    TensorShape,
    model_config,
    model_metadata,
    model_statistics,
    server_metadata,
)
from serve_app.api.dialects.triton.role import Role
from serve_app.api.edge.connection import reply
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.pages.condition import condition
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity, Task
from serve_app.errors import ModelNotFound, Unavailable
from serve_app.limits import MAX_MODEL_NAME_CHARS, MAX_PROMPTS
from serve_app.types import ModelInfo

JSON: Final = {"content-type": "application/json"}


class Found(NamedTuple):
    """The model that a path names."""

    name: str  # as the client wrote it
    role: Role  # what the name means
    endpoint: Endpoint
    entities: tuple[ServedEntity, ...]  # those of the version, if the path names one


def find(services: Services, scope: Scope, names: dict[str, str]) -> Found:
    """Raises ModelNotFound, also for a model that takes no tensors, or VersionNotFound."""
    name, wanted = names["model"], names.get("version")
    if len(name) > MAX_MODEL_NAME_CHARS:
        raise ModelNotFound("model", "no such model")
    meant = meaning(services, scope, name)
    endpoint = services.endpoints(scope).find_known(meant.endpoint, services.backend)
    entities = endpoint.served_entities if wanted is None else of_version(endpoint, wanted)
    return Found(name, meant.role, endpoint, entities)


def is_ready(services: Services, found: Found) -> bool:
    """Whether the model would answer a request."""
    return any(services.backend.is_ready(entity.app) for entity in found.entities)


class ServerPage:
    """GET /v2."""

    def __init__(self, services: Services) -> None:
        self._body = msgspec.json.encode(server_metadata(services.config.v1_dialect))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, JSON, self._body)


class ServerLive:
    """GET /v2/health/live: this process answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, JSON, msgspec.json.encode({"live": True}))


class ServerReady:
    """GET /v2/health/ready: 200 when every endpoint can answer, else 400."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = condition(self._services)
        if found.is_ready:
            await reply(send, 200, JSON, msgspec.json.encode({"ready": True}))
            return
        body = {"ready": False, "error": "; ".join(found.reasons)[:1_000]}
        await reply(send, NOT_READY, JSON, msgspec.json.encode(body))


class ModelPage:
    """GET of a model or of one of its versions: the model's tensors."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, VersionNotFound, or the error that the page answers with."""
        found = find(self._services, scope, scope["path_params"])
        await reply(send, 200, JSON, msgspec.json.encode(self.page(found)))

    def page(self, found: Found) -> answers.ModelPage | answers.ModelConfig | answers.Statistics:
        """The page about the model that was found."""
        versions = sorted({version_of(entity) for entity in found.endpoint.served_entities}, key=int)
        return model_metadata(found.name, versions, *_shapes(found))


class ModelReadyPage(ModelPage):
    """GET .../ready: 200 when a request would be answered, else 400."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, VersionNotFound or Unavailable."""
        context_of(scope).render_error = probe_error
        found = find(self._services, scope, scope["path_params"])
        if not is_ready(self._services, found):
            raise Unavailable("the model is not ready; try again", retry_after_s=2.0)
        await reply(send, 200, JSON, msgspec.json.encode({"name": found.name, "ready": True}))


class ConfigPage(ModelPage):
    """GET .../config: the model's tensors in Triton's own form, and its limits."""

    def page(self, found: Found) -> answers.ModelConfig:
        """Without limits while the model is not known."""
        parameters = config_parameters(_info(self._services, found), self._services.config.trtllm)
        return model_config(
            found.name, *_shapes(found), MAX_PROMPTS, parameters, decoupled=found.role.generates
        )


class StatsPage(ModelPage):
    """GET .../stats: the counts of this gateway."""

    def page(self, found: Found) -> answers.Statistics:
        """One entry a version."""
        return {"model_stats": statistics(self._services, [found])}


class AllStatsPage:
    """GET /v2/models/stats."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = statistics(self._services, everything(self._services, scope))
        await reply(send, 200, JSON, msgspec.json.encode({"model_stats": entries}))


def everything(services: Services, scope: Scope) -> list[Found]:
    """All endpoints of the caller, with all their versions."""
    return [Found(each.name, Role.TENSORS, each, each.served_entities) for each in services.endpoints(scope)]


def statistics(services: Services, models: Sequence[Found]) -> list[answers.ModelStatistics]:
    """One entry for each version of each of `models`."""
    engines = services.backend.stats()
    return [
        model_statistics(
            found.name,
            version_of(entity),
            services.metrics.served(found.endpoint.name, entity.name),
            engines.get(entity.app),
        )
        for found in models
        for entity in found.entities
    ]


def _shapes(found: Found) -> tuple[tuple[TensorShape, ...], tuple[TensorShape, ...]]:
    """Inputs and outputs. A model that embeds has none."""
    return ((), ()) if found.endpoint.task is Task.EMBEDDINGS else SHAPES[found.role]


def _info(services: Services, found: Found) -> ModelInfo | None:
    known = (services.backend.info(entity.app) for entity in found.entities)
    return next((info for info in known if info is not None), None)
