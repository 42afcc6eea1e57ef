"""MindIE's GET routes below /v2: facts about the server and its models.

A version is one of the endpoint's served entities; an entity without a version counts as version 1.
"""

from __future__ import annotations

from starlette.types import Scope

from serve_app.api.dialects.mindie import answers
from serve_app.api.edge.version import VERSION
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import Unavailable


def server_page(v1_dialect: str) -> answers.ServerPage:
    """GET /v2: the server's name, version and extensions."""
    return {"name": "serve-app", "version": VERSION, "extensions": ["generate", f"v1_dialect={v1_dialect}"]}


def model_page(services: Services, scope: Scope) -> answers.ModelPage:
    """GET of a model, or of one of its versions. Raises ModelNotFound or VersionNotFound."""
    endpoint, entities = named(services, scope)
    return {
        "name": endpoint.name,
        "versions": sorted({version_of(entity) for entity in entities}, key=int),
        "platform": "serve-app",
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
    }


def ready_page(services: Services, scope: Scope) -> answers.ReadyPage:
    """GET .../ready: 200 if the model can answer. Raises Unavailable, or an error of `model_page`."""
    endpoint, entities = named(services, scope)
    if not any(services.backend.is_ready(entity.app) for entity in entities):
        raise Unavailable("the model is not ready; try again", retry_after_s=2.0)
    return {"name": endpoint.name, "ready": True}


def config_page(services: Services, scope: Scope) -> answers.ConfigPage:
    """GET .../config: a model's limits. Raises errors of `model_page`, or Unavailable if the limits are
    unknown."""
    endpoint, entities = named(services, scope)
    known = [info for entity in entities if (info := services.backend.info(entity.app)) is not None]
    if not known:
        raise Unavailable("the model is loading; try again", retry_after_s=2.0)
    return {
        "modelName": endpoint.name,
        "maxSeqLen": min(info.context_window for info in known),
        "maxOutputLen": min(info.max_output_tokens or info.context_window for info in known),
        "worldSize": 1,  # a replica computes on one device
    }


def named(services: Services, scope: Scope) -> tuple[Endpoint, tuple[ServedEntity, ...]]:
    """The endpoint and the entities that the path names. Raises ModelNotFound or VersionNotFound."""
    names = scope["path_params"]
    endpoint = services.endpoints(scope).find_known(names["model"], services.backend)
    wanted = names.get("version")
    return endpoint, endpoint.served_entities if wanted is None else of_version(endpoint, wanted)
