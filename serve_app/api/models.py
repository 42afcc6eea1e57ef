"""GET /v1/models and /v1/models/{name}: the models that can answer, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.backend import Backend
from serve_app.api.connection import reply
from serve_app.errors import ModelNotFound
from serve_app.limits import MAX_MODEL_NAME_CHARS
from serve_app.types import ModelInfo

_JSON = {"content-type": "application/json"}


def _entry(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "serve-app",
        "max_model_len": info.context_window,
    }


class ModelList:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = [_entry(info) for info in self._backend.models()]
        await reply(send, 200, _JSON, msgspec.json.encode({"object": "list", "data": entries}))


class ModelPage:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, or Unavailable while the model loads."""
        name = scope["path_params"]["name"]
        if len(name) > MAX_MODEL_NAME_CHARS:
            raise ModelNotFound("model: no such model", param="model")
        info = await self._backend.model(name)
        await reply(send, 200, _JSON, msgspec.json.encode(_entry(info)))
