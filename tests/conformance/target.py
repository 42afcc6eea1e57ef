"""The server that black-box tests ask: one of this process, or any that is running.

`pytest tests/conformance --base-url http://host:8000 [--api-key KEY] [--model NAME]` asks a
running one. A test is black-box if it takes the fixture `client` or `embedder`; all others need a
backend that plays a part, and are skipped then, as are those marked `own_server`. The suites of
embeddings want NAME to be a model that embeds, the others one that chats.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from serve_app.config import EngineConfig, ModelConfig
from tests.support.gateway import directory_of, fake_app

DEMO: Final = "demo-chat"
HERE: Final = Path(__file__).parent
ANSWER_TIMEOUT_S: Final = 120.0

BLACK_BOX: Final = frozenset({"client", "embedder"})  # fixtures
SCRIPTED: Final = "needs a backend that plays a part"
OWN_SERVER: Final = "knows the model or the settings of the suite's own server"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests, and which model they name. No `url`: a server of this process."""

    model: str = DEMO
    url: str | None = None
    api_key: str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> Target:
        """As the command line has it, if it was asked with this folder's options."""
        return cls(
            model=config.getoption("model", default=None) or DEMO,
            url=config.getoption("base_url", default=None),
            api_key=config.getoption("api_key", default=None),
        )

    def skips(self, item: pytest.Item) -> str | None:
        """Why a test cannot ask a running server, if it cannot."""
        if self.url is None or not item.path.is_relative_to(HERE):
            return None
        if BLACK_BOX.isdisjoint(getattr(item, "fixturenames", ())):
            return SCRIPTED
        return OWN_SERVER if item.get_closest_marker("own_server") else None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A connection to the server, which is started if it is one of this process."""
        if self.url is not None:
            headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
            async with httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=ANSWER_TIMEOUT_S
            ) as connected:
                yield connected
            return
        async with demo_app() as app:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as connected:
                yield connected


@asynccontextmanager
async def demo_app(
    endpoints: Sequence[dict[str, Any]] | None = None,
    model: str = DEMO,
    window: int | None = 512,
    max_output_tokens: int | None = None,
    **settings: Any,
) -> AsyncIterator[FastAPI]:
    """A gateway with a demo model behind it, all in this process; by default under its own name.

    `settings`: of the gateway.
    """
    # Not on import: to ask a running server takes no engine.
    from serve_app.replica.served_model import start
    from tests.support.local_backend import LocalBackend

    config = ModelConfig(
        name=model,
        dtype="float32",
        threads=1,
        max_output_tokens=max_output_tokens,
        engine=EngineConfig(max_sequences=32, block_size=16, num_blocks=128, max_model_len=window),
    )
    server: Any = await start(config, lambda _: None)
    try:
        backend: Any = LocalBackend(server)
        yield fake_app(backend, directory=directory_of(backend, endpoints), **settings)
    finally:
        await server.stop()
