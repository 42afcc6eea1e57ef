"""Replicas that do not answer are found once one is suspect; requests are kept from them until they do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.deployments.gateway import silent_replicas as silence
from serve_app.deployments.gateway.silent_replicas import SilentReplicas
from tests.support.routed import until


class Replica:
    """As Serve's `RunningReplica`."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked = 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.asked += 1
        await self.goes_on.wait()
        return 0


class Chooser:
    """As Serve's `RequestRouter`: knows how long the queues are."""

    def __init__(self, **replicas: Replica) -> None:
        self.curr_replicas = replicas
        self.known = set(replicas)

    def on_replica_actor_unavailable(self, id: str) -> None:
        self.known.discard(id)


def handle_to(chooser: Chooser | None) -> Any:
    return SimpleNamespace(_router=SimpleNamespace(_asyncio_router=SimpleNamespace(_request_router=chooser)))


async def test_a_silent_replica_is_told_from_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ANSWER_S", 0.05)
    monkeypatch.setattr(silence, "LOOK_S", 0.01)
    well, frozen = Replica(), Replica()
    well.goes_on.set()
    chooser, changes = Chooser(well=well, frozen=frozen), 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    silent = SilentReplicas(handle_to(chooser), changed)
    silent.suspect()
    assert chooser.known == set()  # whoever is chosen next is asked before
    await until(lambda: len(silent) == 1)
    chooser.known.update(("well", "frozen"))  # Serve has sent something to both
    await until(lambda: chooser.known == {"well"})
    assert changes == 1
    frozen.goes_on.set()
    await until(lambda: len(silent) == 0)
    assert changes == 2
    asked = well.asked
    await asyncio.sleep(0.1)
    assert well.asked == asked  # nobody is suspect any more


async def test_a_silent_replica_that_serve_takes_away_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ANSWER_S", 0.05)
    chooser = Chooser(frozen=Replica())
    silent = SilentReplicas(handle_to(chooser), lambda: None)
    silent.suspect()
    await until(lambda: len(silent) == 1)
    chooser.curr_replicas.clear()
    assert len(silent) == 0
    silent.close()


async def test_before_serve_has_told_of_replicas_nobody_is_suspect() -> None:
    silent = SilentReplicas(handle_to(None), lambda: None)
    silent.suspect()
    assert len(silent) == 0
