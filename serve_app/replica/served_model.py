"""Chooses the kind of server that a model needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from serve_app.config import ModelConfig
from serve_app.engine.ranks.launcher import Launcher
from serve_app.models.embedder import is_embedder
from serve_app.models.errors import ModelLoadError
from serve_app.models.source import locate
from serve_app.replica.embedding.server import EmbeddingServer
from serve_app.replica.server import ModelServer

# A loaded model. It raises UnsupportedField for a kind of request that it does not answer.
ServedModel: TypeAlias = ModelServer | EmbeddingServer


async def start(
    config: ModelConfig, progress: Callable[[str], None], launcher: Launcher | None = None
) -> ServedModel:
    """The server that the model of `config` needs, loaded and warmed up. Raises ModelLoadError.

    `launcher`: of the other ranks of a model that is divided; None: they are child processes.
    """
    folder, _ = await asyncio.to_thread(locate, config.source, config.revision, progress)
    # Load the folder that was found, without a second look-up.
    found = config.model_copy(update={"source": str(folder), "revision": None})
    embeds = is_embedder(config, folder)
    if embeds and config.ranks > 1:
        raise ModelLoadError(f"{config.name}: {config.divided_by} is for models that generate; take it out")
    if embeds:
        return await EmbeddingServer.start(found, progress)
    return await ModelServer.start(found, progress, launcher)
