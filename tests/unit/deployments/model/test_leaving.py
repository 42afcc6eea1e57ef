"""Serve's own way to stop a replica, as `on_stop` relies on it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from ray.serve._private.replica import Replica

from serve_app.deployments.model import replica as leaving


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Serve's own stop is called with, in place of that."""
    calls: list[Any] = []

    async def stop(replica: Any) -> None:
        calls.append(replica)

    monkeypatch.setattr(leaving, "_stop", stop)
    monkeypatch.setattr(Replica, "_perform_graceful_shutdown", leaving._stop)
    return calls


def replica() -> Any:
    """One that was constructed and serves nothing, on the loop that runs."""
    made: Any = Replica.__new__(Replica)
    made._graceful_shutdown_task = None
    made._event_loop = asyncio.get_running_loop()
    return made


async def test_the_first_stop_is_told_before_serve_waits_for_answers(stopped: list[Any]) -> None:
    told = asyncio.Event()
    leaving.on_stop(told.set)
    stopping = replica()
    await stopping.perform_graceful_shutdown()
    await asyncio.wait_for(told.wait(), 60)
    await stopping.perform_graceful_shutdown()  # a controller that restarts repeats itself
    assert stopped == [stopping]


async def test_it_is_told_on_the_loop_of_the_deployment(stopped: list[Any]) -> None:
    """Serve has another loop than the code of a deployment."""
    thread: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    leaving.on_stop(lambda: thread.set_result(threading.get_ident()))

    async def stop() -> None:
        await replica().perform_graceful_shutdown()

    await asyncio.to_thread(asyncio.run, stop())
    assert await asyncio.wait_for(thread, 60) == threading.get_ident()
    assert len(stopped) == 1


def test_serve_waits_for_answers_within_what_is_wrapped() -> None:
    """The names that it calls, in the order of the code."""
    names = Replica._perform_graceful_shutdown.__code__.co_names
    assert names.index("_drain_ongoing_requests") < names.index("shutdown")
    assert "_perform_graceful_shutdown" in Replica.perform_graceful_shutdown.__code__.co_names
