"""`client`: HTTP to a gateway with a real model behind it, all in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from serve_app.config import EngineConfig, ModelConfig
from serve_app.replica.server import ModelServer
from tests.conformance.local_backend import LocalBackend
from tests.gateway import fake_app

MODEL = "demo-chat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    config = ModelConfig(
        name=MODEL,
        dtype="float32",
        threads=1,
        engine=EngineConfig(max_sequences=16, block_size=16, num_blocks=128, max_model_len=512),
    )
    server = await ModelServer.start(config, lambda _: None)
    backend = LocalBackend(server)
    transport = httpx.ASGITransport(fake_app(backend), raise_app_exceptions=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as connected:
        yield connected
    await server.stop()
