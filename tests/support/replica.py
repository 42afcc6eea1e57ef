"""A model's server in this process, as a replica has it, without Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from serve_app.config import EngineConfig, ModelConfig
from serve_app.replica.server import ModelServer


@asynccontextmanager
async def model_server(engine: dict[str, Any], **config: Any) -> AsyncIterator[ModelServer]:
    """In float32, on one thread. `engine` and `config` are fields of `EngineConfig` and `ModelConfig`."""
    settings = {"dtype": "float32", "threads": 1, **config}
    made = await ModelServer.start(
        ModelConfig(**settings, engine=EngineConfig(block_size=16, **engine)), lambda _: None
    )
    try:
        yield made
    finally:
        await made.stop()
