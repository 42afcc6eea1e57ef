"""demo-chat or demo-embed behind a real socket, for clients that open connections of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.target import DEMO, demo_app
from tests.support.gateway import served

EMBED = "demo-embed"


@asynccontextmanager
async def demo_server(model: str = DEMO) -> AsyncIterator[str]:
    """The server's URL."""
    embeds = model == EMBED
    endpoints = [{"name": model, "task": "llm/v1/embeddings"}] if embeds else None
    async with (
        demo_app(endpoints, model, None if embeds else 512) as app,
        served(app) as (host, port),
    ):
        yield f"http://{host}:{port}"
