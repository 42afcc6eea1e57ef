"""uvicorn's server without its looks: it answers, ends when it is told, and looks once a second alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
import uvicorn

from serve_app.deployments import environment
from serve_app.deployments.lean_ray import event_server
from serve_app.deployments.lean_ray.event_server import EventServer

WAIT_S = 60.0


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("from_a_thread", [True, False])
async def test_it_ends_as_soon_as_it_is_told(monkeypatch: pytest.MonkeyPatch, from_a_thread: bool) -> None:
    monkeypatch.setattr(event_server, "DATE_S", 10 * WAIT_S)  # a look would come too late
    port = environment.free_port()
    server = EventServer(uvicorn.Config(app, port=port, lifespan="off", log_config=None))
    running = asyncio.create_task(server._serve())
    async with asyncio.timeout(WAIT_S):
        while not server.started:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{port}/")
        assert answer.status_code == 204
        assert "date" in answer.headers

        def end() -> None:
            server.should_exit = True

        if from_a_thread:
            threading.Thread(target=end).start()
        else:
            end()
        await running
    assert server.should_exit


async def test_it_looks_once_for_each_date(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    async def on_tick(self: EventServer, counter: int) -> bool:
        looks.append(counter)
        return len(looks) == 3

    monkeypatch.setattr(event_server, "DATE_S", 0.01)
    monkeypatch.setattr(EventServer, "on_tick", on_tick)
    async with asyncio.timeout(WAIT_S):
        await EventServer(uvicorn.Config(app)).main_loop()
    assert looks == [0, 0, 0]
