"""Counts of an application: those of replicas that left stay, and a replica that returns counts once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest

from serve_app.channel.receiver import COUNTERS, REMEMBERED, Departed, Receiver
from serve_app.channel.sender import Sender
from serve_app.deployments.gateway.backend import total
from serve_app.telemetry.collectors import ENGINE
from serve_app.types import EngineStats
from tests.support.waiting import until

APP = "m"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = await Receiver.start("127.0.0.1")
    yield receiver
    await receiver.close()


def counted(receiver: Receiver) -> EngineStats:
    return total([*receiver.stats(APP), receiver.departed(APP)])


async def connect(receiver: Receiver, replica: str, generated: int) -> Sender:
    """A replica that has generated so many tokens, once its statistics are there."""
    now = EngineStats(running=1, generated_tokens=generated, heartbeat_age_s=1.0)
    sender = Sender(replica=replica, app=APP, stats=lambda: now)
    await sender.to(receiver.ticket)
    await until(lambda: now in receiver.stats(APP))
    return sender


async def leave(receiver: Receiver, sender: Sender) -> None:
    peers = len(receiver.peers)
    await sender.close()
    await until(lambda: len(receiver.peers) < peers)


async def test_counts_stay_when_replicas_leave_and_gauges_do_not(receiver: Receiver) -> None:
    assert receiver.departed(APP) == EngineStats()
    first = await connect(receiver, "first", 100)
    second = await connect(receiver, "second", 20)
    await leave(receiver, first)
    assert (counted(receiver).generated_tokens, counted(receiver).running) == (120, 1)
    await leave(receiver, second)
    assert counted(receiver) == EngineStats(generated_tokens=120)
    third = await connect(receiver, "third", 3)
    assert counted(receiver).generated_tokens == 123
    await leave(receiver, third)


async def test_a_replica_that_comes_back_counts_once(receiver: Receiver) -> None:
    await leave(receiver, await connect(receiver, "first", 100))
    again = await connect(receiver, "first", 130)
    assert counted(receiver).generated_tokens == 130
    await leave(receiver, again)
    assert counted(receiver).generated_tokens == 130


async def test_a_connection_that_ends_after_the_next_one_began_counts_once(receiver: Receiver) -> None:
    old = await connect(receiver, "first", 100)
    new = await connect(receiver, "first", 130)
    await leave(receiver, old)
    assert counted(receiver).generated_tokens == 130
    await leave(receiver, new)
    assert counted(receiver).generated_tokens == 130


def test_many_replicas_are_summed_and_few_remembered() -> None:
    draw, departed, sums = random.Random(7), Departed(), dict.fromkeys(COUNTERS, 0)
    for i in range(3 * REMEMBERED):
        counts = {name: draw.randrange(1_000) for name in COUNTERS}
        departed.left(f"replica-{i}", EngineStats(running=i, **counts))
        sums = {name: sums[name] + counts[name] for name in COUNTERS}
    assert departed.counts == EngineStats(**sums)
    departed.returned("replica-0")  # long forgotten
    assert departed.counts == EngineStats(**sums)
    departed.returned(f"replica-{3 * REMEMBERED - 1}")
    assert departed.counts == EngineStats(**{name: sums[name] - counts[name] for name in COUNTERS})


def test_every_counter_of_the_metrics_is_kept() -> None:
    assert {attribute for _, _, attribute, counts in ENGINE if counts} <= set(COUNTERS)
    assert set(COUNTERS) < {each.name for each in fields(EngineStats)}
