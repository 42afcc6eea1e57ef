"""A gateway over a real model in this process, without Ray, on a loopback port of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final

from starlette.applications import Starlette

from serve_app.accounts.accounts import Accounts
from serve_app.api.app import build_app
from serve_app.api.directory import Directory
from serve_app.api.services import gateway_services
from serve_app.config import GatewayConfig, ModelConfig
from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.endpoints.endpoint import Task
from serve_app.replica.served_model import start
from tests.support.fakes_metering import ListJournal, LocalQuota
from tests.support.gateway import served
from tests.support.local_backend import LocalBackend

START_LIMIT_S: Final = 60.0


@contextmanager
def local_model(config: ModelConfig) -> Iterator[str]:
    """The URL of a gateway whose one endpoint is the model of `config`."""
    with _in_thread(_running(config)) as url:
        yield url


@contextmanager
def running_app(app: Starlette) -> Iterator[str]:
    """The URL of `app`."""
    with _in_thread(_url_of(app)) as url:
        yield url


@contextmanager
def _in_thread(running: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """What `running` yields, on an event loop of a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="local gateway", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(START_LIMIT_S)
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(START_LIMIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def _url_of(app: Starlette) -> AsyncIterator[str]:
    async with served(app) as (host, port):
        yield f"http://{host}:{port}"


@asynccontextmanager
async def _running(config: ModelConfig) -> AsyncIterator[str]:
    server = await start(config, lambda _: None)
    task = Task.CHAT if server.info.dimensions is None else Task.EMBEDDINGS
    settings = GatewayConfig()
    services = gateway_services(
        LocalBackend(server),
        Accounts(settings, {}),
        settings,
        directory=Directory(parse_catalogue({"endpoints": [{"name": config.name, "task": task}]})),
        quota=LocalQuota(),
        journal=ListJournal(),
    )
    try:
        async with _url_of(build_app(services)) as url:
            yield url
    finally:
        await server.stop()
