"""MindIE's routes below /v2: the end of a text by request, and what can be asked of server and models.

Its texts are in tensors.py, as they share a route with Triton.
A version is one of the endpoint's served entities; one that has none counts as version 1.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.admission.stoppable import StopKey
from serve_app.api.context import context_of
from serve_app.api.dialects.mindie import answers
from serve_app.api.dialects.mindie.generate import check_id
from serve_app.api.edge.body import WireModel, parse_body, read_body
from serve_app.api.edge.connection import reply
from serve_app.api.edge.version import VERSION
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Text
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import InvalidField, RouteNotFound, Unavailable
from serve_app.limits import MAX_HEADER_ID_CHARS

_JSON: Final = {"content-type": "application/json"}


class StopBody(WireModel):
    id: Annotated[str | None, Text(1, MAX_HEADER_ID_CHARS)] = doc(
        "ends the caller's newest running request of this id", accepts=" of A-Z a-z 0-9 _ -", required=True
    )


class StopRoute:
    """POST .../stopInfer: ends the caller's newest request of an id, if this gateway runs it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody, InvalidField, ModelNotFound, VersionNotFound or RouteNotFound."""
        services, context, names = self._services, context_of(scope), scope["path_params"]
        # Without a look at the gateway's load: to a full one a stop is the best that can come.
        with services.bodies.lease() as lease:
            body = parse_body(StopBody, await read_body(scope, receive, lease.take))
        if body.id is None:
            raise InvalidField("id", "is required")
        check_id(body.id)
        _found(services, scope)
        if not services.stoppable.stop(StopKey.of(context, names["model"], body.id)):
            raise RouteNotFound("id: no request of this id is running here")
        await reply(send, 200, _JSON, msgspec.json.encode({"id": body.id}))


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
        endpoint, entities = _found(self._services, scope)
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


def _found(services: Services, scope: Scope) -> tuple[Endpoint, tuple[ServedEntity, ...]]:
    """What the path names. Raises ModelNotFound or VersionNotFound."""
    names = scope["path_params"]
    endpoint = services.endpoints(scope).find_known(names["model"], services.backend)
    wanted = names.get("version")
    return endpoint, endpoint.served_entities if wanted is None else of_version(endpoint, wanted)
