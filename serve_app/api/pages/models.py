"""GET /v1/models and /v1/models/{name}: the endpoints that can answer, in OpenAI's shape or in Anthropic's.

An adapter of an endpoint's model is listed beside it, as ENDPOINT:ADAPTER, once the model's facts are known.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.types import Scope

from serve_app.api.context import context_of, speaks_anthropic
from serve_app.api.dialects.anthropic.answers import AnthropicModel, AnthropicModels
from serve_app.api.dialects.anthropic.models import model_fields, models_page
from serve_app.api.directory import adapters_of
from serve_app.api.pages.answers import ModelEntry, ModelList, Precision, ServedEntity
from serve_app.api.services import Services
from serve_app.endpoints import endpoint as endpoints
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import ModelNotFound, Unavailable
from serve_app.limits import MAX_MODEL_NAME_CHARS
from serve_app.types import ModelInfo

_FILE_NAMES: Final = {"max_tokens": "max_new_tokens"}


class Models:
    """Both pages."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._backend = services.backend

    def listed(self, scope: Scope) -> ModelList | AnthropicModels:
        """All models. Raises InvalidField for invalid paging parameters of Anthropic's list."""
        entries: list[ModelEntry] = []
        for endpoint in filter(self._is_ready, self._services.endpoints(scope)):
            adapters = adapters_of(endpoint, self._backend)
            entries += [self._entry(endpoint), *(self._adapter_entry(endpoint, each) for each in adapters)]
        if speaks_anthropic(scope, context_of(scope)):
            return models_page(entries, scope["query_string"].decode("latin-1"))
        return {"object": "list", "data": entries}

    def named(self, scope: Scope) -> ModelEntry | AnthropicModel:
        """One model. Raises ModelNotFound; raises Unavailable while no entity can answer."""
        name = scope["path_params"]["name"]
        if len(name) > MAX_MODEL_NAME_CHARS:
            raise ModelNotFound("model", "no such model")
        endpoints = self._services.endpoints(scope)
        endpoint = endpoints.find_known(name, self._backend)
        if not self._is_ready(endpoint):
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        _, adapter = endpoints.resolve(name, self._backend)
        entry = self._entry(endpoint) if adapter is None else self._adapter_entry(endpoint, adapter)
        return model_fields(entry) if speaks_anthropic(scope, context_of(scope)) else entry

    def _is_ready(self, endpoint: Endpoint) -> bool:
        return any(self._backend.is_ready(entity.app) for entity in endpoint.served_entities)

    def _adapter_entry(self, endpoint: Endpoint, adapter: str) -> ModelEntry:
        """As vLLM lists them: `parent` is the adapted model."""
        return {**self._entry(endpoint), "id": f"{endpoint.name}:{adapter}", "parent": endpoint.name}

    def _entry(self, endpoint: Endpoint) -> ModelEntry:
        infos = [self._backend.info(entity.app) for entity in endpoint.served_entities]
        known = [info for info in infos if info is not None]
        entry: ModelEntry = {
            "id": endpoint.name,
            "object": "model",
            "created": max((info.created for info in known), default=self._services.directory.created),
            "owned_by": "serve-app",
            "max_model_len": min((info.context_window for info in known), default=0),
            "task": endpoint.task,
            "kind": endpoint.kind,
            "served_entities": [
                self._entity(endpoint, entity, info)
                for entity, info in zip(endpoint.served_entities, infos, strict=True)
            ],
        }
        if not known:
            del entry["max_model_len"]
        return entry

    def _entity(
        self, endpoint: Endpoint, entity: endpoints.ServedEntity, info: ModelInfo | None
    ) -> ServedEntity:
        """`info`: the facts about the entity's model; None while they are unknown."""
        precision: Precision = {}
        defaults: dict[str, float | None] = {}
        if info is not None:
            precision = {"dtype": info.dtype, "quantization": info.quantization}
            defaults = asdict(info.sampling_defaults)
        return {
            "name": entity.name,
            "model": entity.model,
            "version": entity.version,
            "traffic": endpoint.traffic.get(entity.name, 0),
            "ready": self._backend.is_ready(entity.app),
            **precision,
            # By the names of generation_config.json.
            "generation_config": {
                _FILE_NAMES.get(name, name): value for name, value in defaults.items() if value is not None
            },
        }
