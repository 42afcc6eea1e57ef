"""MindIE's GET routes below /v2: what can be asked of the server and of models.

A version is one of the endpoint's served entities; one that has none counts as version 1.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.dialects.mindie import answers
from serve_app.api.edge.connection import reply
from serve_app.api.edge.version import VERSION
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import Unavailable

_JSON: Final = {"content-type": "application/json"}


class ServerPage:
    """GET /v2: who answers, and what it can."""

    def __init__(self, v1_dialect: str) -> None:
        extensions = ["generate", f"v1_dialect={v1_dialect}"]
        self._body: answers.ServerPage = {"name": "serve-app", "version": VERSION, "extensions": extensions}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, _JSON, msgspec.json.encode(self._body))


class ModelPage:
    """GET of a model, or of one of its versions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, VersionNotFound, or what the page has to say."""
        endpoint, entities = named(self._services, scope)
        await reply(send, 200, _JSON, msgspec.json.encode(self._page(endpoint, entities)))

    def _page(
        self, endpoint: Endpoint, entities: tuple[ServedEntity, ...]
    ) -> answers.ModelPage | answers.ReadyPage | answers.ConfigPage:
        versions = sorted({version_of(entity) for entity in entities}, key=int)
        return {
            "name": endpoint.name,
            "versions": versions,
            "platform": "serve-app",
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
        }


class ReadyPage(ModelPage):
    """GET .../ready: 200 when a request would be answered."""

    def _page(self, endpoint: Endpoint, entities: tuple[ServedEntity, ...]) -> answers.ReadyPage:
        """Raises Unavailable."""
        if not any(self._services.backend.is_ready(entity.app) for entity in entities):
            raise Unavailable("the model is not ready; try again", retry_after_s=2.0)
        return {"name": endpoint.name, "ready": True}


class ConfigPage(ModelPage):
    """GET .../config: the limits of a model."""

    def _page(self, endpoint: Endpoint, entities: tuple[ServedEntity, ...]) -> answers.ConfigPage:
        """Raises Unavailable while nothing is known of it."""
        backend = self._services.backend
        known = [info for entity in entities if (info := backend.info(entity.app)) is not None]
        if not known:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        return {
            "modelName": endpoint.name,
            "maxSeqLen": min(info.context_window for info in known),
            "maxOutputLen": min(info.max_output_tokens or info.context_window for info in known),
            "worldSize": 1,  # a replica computes on one device
        }


def named(services: Services, scope: Scope) -> tuple[Endpoint, tuple[ServedEntity, ...]]:
    """What the path names. Raises ModelNotFound or VersionNotFound."""
    names = scope["path_params"]
    endpoint = services.endpoints(scope).find_known(names["model"], services.backend)
    wanted = names.get("version")
    return endpoint, endpoint.served_entities if wanted is None else of_version(endpoint, wanted)
