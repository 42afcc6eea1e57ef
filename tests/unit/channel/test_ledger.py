"""What a replica keeps for a gateway until the gateway wrote it down; over a real connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from serve_app.channel.frames import Ticket
from serve_app.channel.ledger import Settlement
from serve_app.channel.receiver import Receiver
from serve_app.channel.sender import Sender
from serve_app.types import EngineStats, FinishReason, TokenDelta, Usage, UsageRecord
from tests.support.waiting import until

WAIT_S = 60.0


class Replica:
    """A sender, and what it would have another gateway write down."""

    def __init__(self) -> None:
        self.settled: list[Settlement] = []
        self.gone: list[str] = []
        self.sender = Sender(replica="r1", app="m", stats=EngineStats, on_gone=self._on_gone)

    def _on_gone(self, ticket: Ticket, settlements: list[Settlement]) -> None:
        self.gone.append(ticket.app)
        self.settled += settlements

    async def answer(self, receiver: Receiver, key: str, record: UsageRecord | None, tokens: int) -> None:
        """Answer with so many tokens, then stay open if there is an inbox for it."""
        outlet = await self.sender.to(receiver.ticket)

        async def work() -> None:
            for count in range(1, tokens + 1):
                usage = Usage(prompt_tokens=5, completion_tokens=count, cached_tokens=2)
                last = FinishReason.LENGTH if count == tokens else None
                outlet.send([TokenDelta(request_id=key, index=0, text="x", usage=usage, finish=last)])
                await asyncio.sleep(0)

        await outlet.run(key, work(), record)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica()
    yield replica
    await replica.sender.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = await Receiver.start("127.0.0.1", "system")
    yield receiver
    await receiver.close()


def record(id: str) -> UsageRecord:
    return UsageRecord(
        id=id,
        key_id="alice",
        endpoint="chat",
        entity="demo",
        kind="pay_per_token",
        route="/v1/chat/completions",
        started=time.time() - 1,
        outcome="lost",
    )


def die(receiver: Receiver) -> None:
    """What the kernel does for a gateway that is killed."""
    for link in tuple(receiver.peers):
        link.drop("killed")


async def test_a_stream_that_was_generated_but_not_written_down_is_settled(
    replica: Replica, receiver: Receiver
) -> None:
    inbox = receiver.open("a", "a")
    await replica.answer(receiver, "a", record("a"), tokens=7)
    await inbox.get()  # delivered; but its client reads slowly, and the record is open
    die(receiver)
    await until(lambda: replica.gone)
    assert replica.gone == ["system"]
    (settled,) = replica.settled
    assert (settled.part, settled.gateway) == ("a", receiver.ticket.gateway)
    made = settled.record
    assert (made.id, made.key_id, made.outcome, made.status) == ("a", "alice", "lost", 200)
    assert (made.prompt_tokens, made.cached_tokens, made.completion_tokens) == (5, 2, 7)
    assert made.total_s >= 1


async def test_what_the_gateway_wrote_down_is_forgotten_with_its_next_beat(
    replica: Replica, receiver: Receiver
) -> None:
    for key in ("a", "b"):
        inbox = receiver.open(key, key)
        await replica.answer(receiver, key, record(key), tokens=3)
        await inbox.get()
        inbox.close()
    receiver.booked("a")
    receiver.booked("a")  # nothing is left to tell
    receiver.booked("unknown")
    outlet = await replica.sender.to(receiver.ticket)
    await until(lambda: len(outlet._ledger) == 1)
    die(receiver)
    await until(lambda: replica.gone)
    assert [each.record.id for each in replica.settled] == ["b"]


async def test_each_prompt_of_a_body_is_a_part_and_a_failed_attempt_is_none(
    replica: Replica, receiver: Receiver
) -> None:
    body = record("body")
    for key, tokens in (("body-0", 3), ("body-1~1", 4), ("body-2", 0)):
        receiver.open(key, "body")
        await replica.answer(receiver, key, body, tokens)
    die(receiver)
    await until(lambda: replica.gone)
    assert [
        (each.part, each.record.prompt_tokens, each.record.completion_tokens) for each in replica.settled
    ] == [
        ("body-0", 5, 3),
        ("body-1~1", 5, 4),
    ]


async def test_requests_without_a_record_or_without_a_token_are_nobodys(
    replica: Replica, receiver: Receiver
) -> None:
    receiver.open("a")
    await replica.answer(receiver, "a", None, tokens=3)
    receiver.open("b", "b")
    await replica.answer(receiver, "b", record("b"), tokens=0)
    outlet = await replica.sender.to(receiver.ticket)
    assert len(outlet._ledger) == 0
    die(receiver)
    await until(lambda: replica.gone)
    assert replica.settled == []


async def test_a_gateway_that_gave_a_request_up_accounts_for_it_itself(
    replica: Replica, receiver: Receiver
) -> None:
    await replica.answer(receiver, "late", record("late"), tokens=3)  # no inbox: each delta is refused
    outlet = await replica.sender.to(receiver.ticket)
    await until(lambda: len(outlet._ledger) == 0)


async def test_a_gateway_that_stops_in_order_leaves_nothing_to_settle(
    replica: Replica, receiver: Receiver
) -> None:
    inbox = receiver.open("a", "a")
    await replica.answer(receiver, "a", record("a"), tokens=3)
    await inbox.get()
    inbox.close()
    receiver.booked("a")
    await receiver.close()  # before the next beat
    await until(lambda: replica.gone)
    assert replica.settled == []


async def test_a_replica_that_stops_settles_nothing(replica: Replica, receiver: Receiver) -> None:
    receiver.open("a", "a")
    await replica.answer(receiver, "a", record("a"), tokens=3)
    outlet = await replica.sender.to(receiver.ticket)
    await replica.sender.close()
    await until(lambda: outlet.link.closed)
    assert replica.gone == []
