"""The interface of a loaded model, and the choice of the server that a model needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from serve_app.config import ModelConfig
from serve_app.models.embedder import is_embedder
from serve_app.models.files import locate
from serve_app.replica.embedding.server import EmbeddingServer
from serve_app.replica.server import DeltaSink, ModelServer
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, Question
from serve_app.types.question import ReplyT


class ServedModel(Protocol):
    """A loaded model. It raises UnsupportedField for a kind of request that it does not answer."""

    info: ModelInfo

    async def generate(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Send the deltas of `request` to `sink`. Raises ServeError before the first delta."""
        ...

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`. Raises ServeError."""
        ...

    def stats(self) -> EngineStats: ...

    def check_health(self) -> None:
        """Raise Unavailable when the model can no longer answer."""
        ...

    async def stop(self) -> None:
        """Refuse new requests and end."""
        ...


async def start(config: ModelConfig, progress: Callable[[str], None]) -> ServedModel:
    """The server that the model of `config` needs, loaded and warmed up. Raises ModelLoadError."""
    folder, _ = await asyncio.to_thread(locate, config.source, config.revision, progress)
    # Load the folder that was found, without a second look-up.
    found = config.model_copy(update={"source": str(folder), "revision": None})
    server = EmbeddingServer if is_embedder(config, folder) else ModelServer
    return await server.start(found, progress)
