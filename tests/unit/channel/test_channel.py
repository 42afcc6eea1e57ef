"""The channel between a gateway's receiver and a replica's sender, over loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from msgspec.structs import replace

from serve_app.channel.frames import (
    MAX_FRAME_BYTES,
    DeltaFrame,
    FramePiece,
    Hello,
    Ticket,
    delta_decoder,
    delta_frames,
    encoder,
)
from serve_app.channel.inbox import Inbox, ReplicaSilent
from serve_app.channel.link import Link
from serve_app.channel.receiver import Receiver
from serve_app.channel.sender import Sender
from serve_app.errors import GenerationFailed, Overloaded, ServeError, Unavailable
from serve_app.types import EngineStats, FinishReason, Tensor, TextLogprob, TokenDelta, Usage
from tests.support.waiting import until

WAIT_S = 60.0


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = await Receiver.start("127.0.0.1")
    yield receiver
    await receiver.close()


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(replica="r1", app="m", stats=lambda: EngineStats(running=3))
    yield sender
    await sender.close()


def delta(key: str, text: str) -> TokenDelta:
    return TokenDelta(request_id=key, index=0, text=text)


async def read_all(inbox: Inbox) -> list[str]:
    texts = []
    while deltas := await asyncio.wait_for(inbox.get(), WAIT_S):
        texts += [delta.text for delta in deltas]
    return texts


async def say(ticket: Ticket, *payloads: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw peer that sends `payloads` as frames."""
    reader, writer = await asyncio.open_connection(ticket.host, ticket.port)
    for payload in payloads:
        writer.write(len(payload).to_bytes(4, "big") + payload)
    return reader, writer


async def test_deltas_arrive_in_order_for_each_request(receiver: Receiver, sender: Sender) -> None:
    keys = ["a", "b", "c"]
    inboxes = {key: receiver.open(key) for key in keys}
    outlet = await sender.to(receiver.ticket)

    async def work(key: str) -> None:
        for step in range(50):
            outlet.send([delta(key, f"{key}{step}"), delta("nobody", "x")])
            await asyncio.sleep(0)

    reads = [asyncio.ensure_future(read_all(inboxes[key])) for key in keys]
    await asyncio.gather(*(outlet.run(key, work(key)) for key in keys))
    for key, texts in zip(keys, await asyncio.gather(*reads), strict=True):
        assert texts == [f"{key}{step}" for step in range(50)]


async def test_who_waits_is_given_a_whole_step_at_once(receiver: Receiver, sender: Sender) -> None:
    inbox = receiver.open("a")
    reading = asyncio.ensure_future(inbox.get())
    outlet = await sender.to(receiver.ticket)
    step = [delta("a", "x"), delta("b", "y"), replace(delta("a", "z"), index=1)]
    outlet.send(step)
    assert await asyncio.wait_for(reading, WAIT_S) == [step[0], step[2]]


async def test_all_requests_of_a_gateway_share_one_connection(receiver: Receiver, sender: Sender) -> None:
    outlets = await asyncio.gather(*(sender.to(receiver.ticket) for _ in range(8)))
    assert len(set(outlets)) == 1
    await until(lambda: len(receiver.peers) == 1)


async def test_every_field_of_a_delta_survives(receiver: Receiver, sender: Sender) -> None:
    inbox = receiver.open("a")
    alternative = TextLogprob(2, "é", b"\xc3\xa9", -1.5)
    sent = TokenDelta(
        request_id="a",
        index=1,
        text="é",
        token_ids=(1, 2),
        logprobs=(TextLogprob(1, "x", b"x", -0.5, (alternative,)),),
        finish=FinishReason.STOP,
        stop="\n",
    )
    outlet = await sender.to(receiver.ticket)
    outlet.send([sent])
    assert await asyncio.wait_for(inbox.get(), WAIT_S) == [sent]


def test_a_plain_delta_carries_nothing_but_what_it_has() -> None:
    usage = Usage(prompt_tokens=9, completion_tokens=2)
    sent = TokenDelta(request_id="a", index=0, text=" word", token_ids=(7,), usage=usage)
    (payload,) = delta_frames([sent])
    _, (fields,) = msgspec.msgpack.decode(payload)
    assert fields == {
        "request_id": "a",
        "index": 0,
        "text": " word",
        "token_ids": [7],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
    }
    assert delta_decoder.decode(payload).deltas == [sent]


async def test_a_broken_connection_ends_started_requests_with_an_error(
    receiver: Receiver, sender: Sender
) -> None:
    started, waiting = receiver.open("started"), receiver.open("waiting")
    outlet = await sender.to(receiver.ticket)
    outlet.send([replace(delta("waiting", ""), is_progress=True), delta("started", "x")])
    assert [d.text for d in await asyncio.wait_for(started.get(), WAIT_S)] == ["x"]
    assert [d.is_progress for d in await asyncio.wait_for(waiting.get(), WAIT_S)] == [True]
    outlet.link.drop("test")
    with pytest.raises(GenerationFailed):
        await asyncio.wait_for(started.get(), WAIT_S)
    assert not waiting.started  # its call decides, and may be retried


async def test_what_a_silent_replica_has_taken_may_be_asked_of_another(
    receiver: Receiver, sender: Sender
) -> None:
    """Requests and questions of which nothing came, and no others."""
    question, untaken = receiver.open("question"), receiver.open("untaken")
    request, told = receiver.open("request"), receiver.open("told")
    silent: list[str] = []
    receiver.on_silence = silent.append
    outlet = await sender.to(receiver.ticket)
    outlet.take("question")
    runs = [asyncio.ensure_future(outlet.run(key, _wait(asyncio.Event()))) for key in ("request", "told")]
    await asyncio.sleep(0)
    outlet.send([replace(delta("told", ""), is_progress=True)])
    assert [d.is_progress for d in await asyncio.wait_for(told.get(), WAIT_S)] == [True]
    (link,) = receiver.peers
    link.drop("the peer is silent")
    for inbox in (question, request, told):
        with pytest.raises(ReplicaSilent):
            await asyncio.wait_for(inbox.begun(by_progress=False), WAIT_S)
    assert not untaken.is_answered
    assert len(silent) == 1
    for run in runs:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(run, WAIT_S)


async def test_a_request_that_nobody_waits_for_is_aborted_as_soon_as_a_replica_takes_it(
    receiver: Receiver, sender: Sender
) -> None:
    outlet = await sender.to(receiver.ticket)
    await asyncio.wait_for(outlet.run("gone", _wait(asyncio.Event())), WAIT_S)


async def test_what_arrived_before_a_break_is_read_before_the_error(
    receiver: Receiver, sender: Sender
) -> None:
    inbox = receiver.open("a")
    outlet = await sender.to(receiver.ticket)
    outlet.send([delta("a", "x")])
    outlet.link.close()
    await until(lambda: not receiver.peers and inbox.started)
    assert [d.text for d in await inbox.get()] == ["x"]
    with pytest.raises(GenerationFailed):
        await inbox.get()


async def test_a_gateway_that_goes_away_cancels_the_work(receiver: Receiver, sender: Sender) -> None:
    outlet = await sender.to(receiver.ticket)
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    run = asyncio.ensure_future(outlet.run("a", work()))
    await until(lambda: receiver.peers)
    await receiver.close()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(run, WAIT_S)
    assert cancelled.is_set()


async def test_a_cancelled_call_cancels_its_work_and_no_other(receiver: Receiver, sender: Sender) -> None:
    outlet = await sender.to(receiver.ticket)
    go = asyncio.Event()
    runs = [asyncio.ensure_future(outlet.run(key, _wait(go))) for key in "ab"]
    await asyncio.sleep(0)
    runs[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    go.set()
    await asyncio.wait_for(runs[1], WAIT_S)


async def test_a_request_that_nobody_reads_any_more_is_aborted_and_no_other(
    receiver: Receiver, sender: Sender
) -> None:
    """Serve's own cancelling may get lost; the replica hears it from the channel."""
    outlet = await sender.to(receiver.ticket)
    given_up, kept = receiver.open("a"), receiver.open("b")
    go = asyncio.Event()

    async def endless() -> None:
        while True:
            outlet.send([delta("a", "x")])
            await asyncio.sleep(0.005)

    runs = [
        asyncio.ensure_future(outlet.run(key, work)) for key, work in (("a", endless()), ("b", _wait(go)))
    ]
    await asyncio.wait_for(given_up.get(), WAIT_S)
    given_up.close()
    await asyncio.wait_for(runs[0], WAIT_S)  # ends quietly: nobody waits for what it says
    assert not runs[1].done()
    outlet.send([delta("b", "y")])
    go.set()
    await asyncio.wait_for(runs[1], WAIT_S)
    assert await read_all(kept) == ["y"]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_an_error_of_the_work_is_the_callers(receiver: Receiver, sender: Sender) -> None:
    outlet = await sender.to(receiver.ticket)

    async def refuse() -> None:
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        await outlet.run("a", refuse())


async def test_a_new_connection_follows_a_broken_one(receiver: Receiver, sender: Sender) -> None:
    first = await sender.to(receiver.ticket)
    first.link.drop("test")
    second = await sender.to(receiver.ticket)
    assert second is not first
    inbox = receiver.open("a")
    second.send([delta("a", "x")])
    assert [d.text for d in await asyncio.wait_for(inbox.get(), WAIT_S)] == ["x"]


async def test_an_unreachable_gateway_is_unavailable(receiver: Receiver, sender: Sender) -> None:
    await receiver.close()
    with pytest.raises(Unavailable):
        await sender.to(receiver.ticket)


@pytest.mark.parametrize("token", [b"", b"x" * 32])
async def test_a_peer_without_the_token_is_closed_and_delivers_nothing(
    receiver: Receiver, token: bytes
) -> None:
    inbox = receiver.open("a")
    reader, writer = await say(
        receiver.ticket, encoder.encode(Hello(token, "r", "m")), encoder.encode(DeltaFrame([delta("a", "x")]))
    )
    assert await asyncio.wait_for(_rest(reader), WAIT_S) == b""
    writer.close()
    assert not inbox.started
    assert not receiver.peers


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",  # 4 GiB announced
        b"\x00\x00\x04\x01",  # one byte more than a hello may have
        b"\x00\x00\x00\x01\xc1",  # not msgpack
        b"\x00\x00\x00\x02\x91\xa0",  # msgpack of no known type
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_malformed_stranger_is_closed(receiver: Receiver, raw: bytes) -> None:
    reader, writer = await say(receiver.ticket)
    writer.write(raw)
    assert await asyncio.wait_for(_rest(reader), WAIT_S) == b""
    writer.close()
    assert not receiver.peers


async def test_a_frame_of_the_wrong_type_breaks_an_admitted_peer(receiver: Receiver) -> None:
    hello = encoder.encode(Hello(receiver.ticket.token, "r", "m"))
    bad = encoder.encode(["DeltaFrame", [{"request_id": 1, "index": "zero"}]])
    reader, writer = await say(receiver.ticket, hello, bad)
    await asyncio.wait_for(_rest(reader), WAIT_S)
    writer.close()
    await until(lambda: not receiver.peers)


async def test_frames_may_arrive_one_byte_at_a_time(receiver: Receiver) -> None:
    inbox = receiver.open("a")
    hello = encoder.encode(Hello(receiver.ticket.token, "r", "m"))
    step = encoder.encode(DeltaFrame([delta("a", "x")]))
    _, writer = await say(receiver.ticket)
    for byte in b"".join(len(p).to_bytes(4, "big") + p for p in (hello, step)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert [d.text for d in await asyncio.wait_for(inbox.get(), WAIT_S)] == ["x"]
    writer.close()


async def test_a_gateway_that_does_not_read_is_dropped_and_send_never_blocks() -> None:
    """The gateway here is a raw server that accepts and never reads."""
    accepted: list[asyncio.StreamWriter] = []

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = Sender(replica="r", app="m", stats=EngineStats, max_backlog_bytes=2**16)
    outlet = await sender.to(Ticket("127.0.0.1", port, "g", b""))
    run = asyncio.ensure_future(outlet.run("a", _wait(asyncio.Event())))
    big = delta("a", "x" * 2**16)
    for _ in range(10_000):
        outlet.send([big])
        if outlet.link.closed:
            break
        await asyncio.sleep(0)
    assert outlet.link.closed
    with pytest.raises(Unavailable):
        await asyncio.wait_for(run, WAIT_S)
    for writer in accepted:
        writer.close()
    server.close()
    await sender.close()


async def test_a_request_whose_client_reads_too_slowly_fails_alone(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.channel.inbox.MAX_UNREAD_DELTAS", 10)
    slow, quick = receiver.open("slow"), receiver.open("quick")
    outlet = await sender.to(receiver.ticket)
    outlet.send([delta("slow", str(i)) for i in range(11)] + [delta("quick", "x")])
    assert [d.text for d in await asyncio.wait_for(quick.get(), WAIT_S)] == ["x"]
    assert len(await slow.get()) == 10
    with pytest.raises(Overloaded):
        await slow.get()


@pytest.mark.parametrize("silent_for_s", [0.2])
async def test_a_silent_peer_is_dropped(silent_for_s: float) -> None:
    """Half-open connections look like this: the socket stays, nothing comes."""
    reasons: list[str] = []
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    link = Link(
        on_frame=lambda payload: None,
        on_close=reasons.append,
        beat=lambda: b"",
        beat_s=0.05,
        silence_s=silent_for_s,
    )
    port = server.sockets[0].getsockname()[1]
    await asyncio.get_running_loop().create_connection(lambda: link, "127.0.0.1", port)
    await until(lambda: link.closed)
    assert reasons == ["the peer is silent"]
    for writer in held:
        writer.close()
    server.close()


async def test_the_statistics_of_a_replica_reach_the_gateway(
    receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sender.to(receiver.ticket)
    await until(lambda: receiver.stats("m"))
    assert receiver.stats("m") == [EngineStats(running=3)]
    assert receiver.stats("other") == []


def test_a_step_larger_than_a_frame_is_split_in_order() -> None:
    deltas = [delta("a", str(i) * 100) for i in range(32)]
    frames = delta_frames(deltas, max_bytes=1_000)
    assert len(frames) > 1
    assert all(len(frame) <= 1_000 for frame in frames)
    assert encoder.encode(DeltaFrame(deltas)) not in frames


def test_a_delta_no_frame_can_hold_becomes_an_error() -> None:
    from serve_app.channel.frames import from_replica

    (frame,) = delta_frames([delta("a", "x" * 5_000)], max_bytes=1_000)
    message = from_replica.decode(frame)
    assert isinstance(message, DeltaFrame)
    (only,) = message.deltas
    assert only.finish is FinishReason.ERROR
    assert only.error is not None


async def test_tensors_larger_than_a_frame_arrive_whole(receiver: Receiver, sender: Sender) -> None:
    inbox = receiver.open("a")
    outlet = await sender.to(receiver.ticket)
    data = bytes(range(256)) * (MAX_FRAME_BYTES // 256 + 4_000)
    logits = Tensor(dtype="FP32", shape=(len(data) // 4,), data=data)
    small = delta("a", "first")
    outlet.send([small, replace(small, text="large", tensors={"context_logits": logits}), small])
    received: list[TokenDelta] = []
    while len(received) < 3:
        received += await asyncio.wait_for(inbox.get(), WAIT_S)
    assert [d.text for d in received] == ["first", "large", "first"]
    assert received[1].tensors["context_logits"] == logits
    assert not outlet.link.closed


async def test_endless_pieces_are_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.channel.frames.MAX_MESSAGE_BYTES", 1_000)
    hello = encoder.encode(Hello(receiver.ticket.token, "r1", "m"))
    piece = encoder.encode(FramePiece(bytes(400), False))
    reader, writer = await say(receiver.ticket, hello, piece, piece, piece)
    while await asyncio.wait_for(reader.read(1_000), WAIT_S):
        pass  # until the gateway has closed the connection
    assert not receiver.peers
    writer.close()


def test_a_ticket_does_not_print_its_token() -> None:
    assert "secret" not in repr(Ticket("127.0.0.1", 1, "g", b"secret"))


async def test_one_key_is_open_once(receiver: Receiver) -> None:
    inbox = receiver.open("a")
    with pytest.raises(ValueError, match="open already"):
        receiver.open("a")
    inbox.close()
    assert isinstance(receiver.open("a"), Inbox)


async def test_an_error_reaches_a_reader_that_waits(receiver: Receiver) -> None:
    inbox = receiver.open("a")
    reading = asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    inbox.fail(Overloaded("full"))
    with pytest.raises(ServeError):
        await asyncio.wait_for(reading, WAIT_S)
