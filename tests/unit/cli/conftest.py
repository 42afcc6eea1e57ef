"""A real gateway over a socket, in a thread of its own, for commands that talk to one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from starlette.types import ASGIApp

from serve_app.cli.main import cli
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import fake_app, served

Serve = Callable[[ASGIApp], str]
Invoke = Callable[..., Result]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves ASGI apps until the test ends; gives the URL of each."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    open_servers: list[Any] = []

    async def start(app: ASGIApp) -> str:
        server = served(app)  # type: ignore[arg-type]  # any ASGI app will do
        host, port = await server.__aenter__()
        open_servers.append(server)
        return f"http://{host}:{port}"

    async def stop() -> None:
        for server in open_servers:
            await server.__aexit__(None, None, None)

    yield lambda app: asyncio.run_coroutine_threadsafe(start(app), loop).result(30)
    asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture
def backend() -> FakeBackend:
    """One model, `demo`."""
    return FakeBackend(infos=[model_info()])


@pytest.fixture
def url(serve: Serve, backend: FakeBackend) -> str:
    """A gateway over `backend`."""
    return serve(fake_app(backend))


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs `serve-app` with arguments, in this process and with nothing of ours in the environment."""
    for name in ("SERVE_APP_URL", "SERVE_APP_KEY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, **options: Any) -> Result:
        return CliRunner().invoke(
            cli, [str(argument) for argument in arguments], prog_name="serve-app", **options
        )

    return run
