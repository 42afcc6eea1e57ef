"""GET /v1/models and /v1/models/{name}: the endpoints that can answer, in OpenAI's shape or in Anthropic's.

An adapter of an endpoint's model is listed beside it, as ENDPOINT:ADAPTER, once the model is known.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.context import context_of, speaks_anthropic
from serve_app.api.dialects.anthropic.models import model_fields, models_page
from serve_app.api.directory import adapters_of
from serve_app.api.edge.connection import reply
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import ModelNotFound, Unavailable
from serve_app.limits import MAX_MODEL_NAME_CHARS
from serve_app.types import ModelInfo

_FILE_NAMES: Final = {"max_tokens": "max_new_tokens"}
_JSON: Final = {"content-type": "application/json"}


class Models:
    """What the two pages have in common."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._backend = services.backend

    def _is_ready(self, endpoint: Endpoint) -> bool:
        return any(self._backend.is_ready(entity.app) for entity in endpoint.served_entities)

    def _adapter_entry(self, endpoint: Endpoint, adapter: str) -> dict[str, Any]:
        """As vLLM lists them: `parent` is what is adapted."""
        return {**self._entry(endpoint), "id": f"{endpoint.name}:{adapter}", "parent": endpoint.name}

    def _entry(self, endpoint: Endpoint) -> dict[str, Any]:
        infos = [self._backend.info(entity.app) for entity in endpoint.served_entities]
        known = [info for info in infos if info is not None]
        entry: dict[str, Any] = {
            "id": endpoint.name,
            "object": "model",
            "created": max((info.created for info in known), default=self._services.directory.created),
            "owned_by": "serve-app",
        }
        if known:
            entry["max_model_len"] = min(info.context_window for info in known)
        return {
            **entry,
            "task": endpoint.task,
            "kind": endpoint.kind,
            "served_entities": [
                {
                    "name": entity.name,
                    "model": entity.model,
                    "version": entity.version,
                    "traffic": endpoint.traffic.get(entity.name, 0),
                    "ready": self._backend.is_ready(entity.app),
                    **_precision(info),
                    "generation_config": _sampling_defaults(info),
                }
                for entity, info in zip(endpoint.served_entities, infos, strict=True)
            ],
        }


def _precision(info: ModelInfo | None) -> dict[str, str]:
    """The type of the weights, and what linear layers are quantised to; nothing while it is unknown."""
    return {} if info is None else {"dtype": info.dtype, "quantization": info.quantization}


def _sampling_defaults(info: ModelInfo | None) -> dict[str, float]:
    """What the model does where a request leaves it the sampling, by the names of generation_config.json."""
    defaults = {} if info is None else asdict(info.sampling_defaults)
    return {_FILE_NAMES.get(name, name): value for name, value in defaults.items() if value is not None}


class ModelList(Models):
    """GET /v1/models."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_anthropics = speaks_anthropic(scope, context_of(scope))
        entries = []
        for endpoint in filter(self._is_ready, self._services.endpoints(scope)):
            entries.append(self._entry(endpoint))
            entries += [
                self._adapter_entry(endpoint, adapter) for adapter in adapters_of(endpoint, self._backend)
            ]
        query = scope["query_string"].decode("latin-1")
        body = models_page(entries, query) if is_anthropics else {"object": "list", "data": entries}
        await reply(send, 200, _JSON, msgspec.json.encode(body))


class ModelPage(Models):
    """GET /v1/models/{name}."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, or Unavailable while no entity can answer."""
        is_anthropics, name = speaks_anthropic(scope, context_of(scope)), scope["path_params"]["name"]
        if len(name) > MAX_MODEL_NAME_CHARS:
            raise ModelNotFound("model", "no such model")
        endpoints = self._services.endpoints(scope)
        endpoint = endpoints.find_known(name, self._backend)
        if not self._is_ready(endpoint):
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        _, adapter = endpoints.resolve(name, self._backend)
        entry = self._entry(endpoint) if adapter is None else self._adapter_entry(endpoint, adapter)
        await reply(send, 200, _JSON, msgspec.json.encode(model_fields(entry) if is_anthropics else entry))
