"""Streams of events that are kept alive by comments: what comes, and what becomes of failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final

import pytest
from openai import AsyncOpenAI
from starlette.types import Message

from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.connection import Writer
from serve_app.api.edge.keepalive import COMMENT, KeptAlive
from serve_app.errors import InvalidField, Overloaded, ServeError
from serve_app.types import GenerateRequest, TokenDelta
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import chat_body, completion_body, gateway, served
from tests.support.streams import streamed

ALIVE_S: Final = 0.02
PAUSE_S: Final = 0.1  # some comments long
TEXT: Final = {"text_input": "Once", "parameters": {"max_new_tokens": 6}}
CHATS: Final = ("/v1", "/mindie/v1", "/v3", "/serving-endpoints")
STREAMS: Final[list[tuple[str, dict[str, Any]]]] = [
    *((f"{base}/chat/completions", chat_body(stream=True)) for base in CHATS),
    ("/v1/completions", completion_body(stream=True)),
    ("/mindie/v2/models/demo/generate_stream", TEXT),
    ("/triton/v2/models/demo/generate_stream", {"text_input": "Once", "max_tokens": 6, "stream": True}),
]
ROUTES: Final = [path for path, _ in STREAMS]


def parts_of(raw: str) -> list[str]:
    assert raw.endswith("\n\n")
    return raw.removesuffix("\n\n").split("\n\n")


def told(part: str) -> Any:
    """An event without what differs between two answers."""
    text = part.removeprefix("data:").strip()
    if text == "[DONE]":
        return text
    event = json.loads(text)
    return {key: value for key, value in event.items() if key not in ("id", "created")}


@pytest.mark.parametrize(("path", "body"), STREAMS, ids=ROUTES)
async def test_comments_come_before_and_between_the_events_that_come_without(
    path: str, body: dict[str, Any]
) -> None:
    async with gateway(FakeBackend(pauses={0: PAUSE_S, 3: PAUSE_S})) as g:
        plain = parts_of((await g.post(path, body)).text)
    async with gateway(FakeBackend(pauses={0: PAUSE_S, 3: PAUSE_S}), sse_keepalive_s=ALIVE_S) as g:
        answer = await g.post(path, body)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        await g.check()
    parts = parts_of(answer.text)
    assert ":" not in plain
    assert parts[0] == ":"
    assert parts[-1] != ":"
    assert ":" in parts[parts.index(next(part for part in parts if part != ":")) :]
    assert [told(part) for part in parts if part != ":"] == [told(part) for part in plain]


async def test_a_stream_that_never_falls_silent_has_no_comment_and_all_headers() -> None:
    async with gateway(sse_keepalive_s=60) as g:
        answer = await g.chat(stream=True)
    assert ":" not in parts_of(answer.text)
    assert answer.headers["served-model-name"] == "demo"


async def test_whole_answers_have_no_comments() -> None:
    async with gateway(FakeBackend(pauses={0: PAUSE_S}), sse_keepalive_s=ALIVE_S) as g:
        answer = await g.chat()
    assert answer.json()["object"] == "chat.completion"


@pytest.mark.parametrize(("path", "body"), STREAMS, ids=ROUTES)
async def test_a_failure_after_a_comment_is_an_event(path: str, body: dict[str, Any]) -> None:
    backend = FakeBackend(pauses={0: PAUSE_S}, fail_after=0, failure=Overloaded("The model's queue is full."))
    async with gateway(backend, sse_keepalive_s=ALIVE_S) as g:
        answer = await g.post(path, body)
        parts = [part for part in parts_of(answer.text) if part != ":"]
        (record,) = g.journal.records
        await g.check()
    assert answer.status_code == 200
    assert "queue is full" in parts[0]
    assert "error" in json.loads(parts[0].removeprefix("data:"))
    assert [part for part in parts[1:] if '"error"' in part] == []
    assert (record.status, record.outcome) == (200, "failed")


async def test_a_failure_after_a_comment_names_the_clients_field() -> None:
    wrong = InvalidField("max_tokens", "must be less")
    async with gateway(
        FakeBackend(pauses={0: PAUSE_S}, fail_after=0, failure=wrong), sse_keepalive_s=ALIVE_S
    ) as g:
        answer = await g.post("/mindie/v2/models/demo/generate_stream", TEXT)
    assert "parameters.max_new_tokens: must be less" in answer.text


async def test_a_failure_before_the_first_comment_has_its_status() -> None:
    async with gateway(FakeBackend(refuse=Overloaded("full")), sse_keepalive_s=60) as g:
        assert (await g.chat(stream=True)).status_code == 503
        assert not g.journal.open


class OneFails(FakeBackend):
    """`demo` is silent for a while, and then fails."""

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:  # type: ignore[override]
        if request.model == "model-demo":
            await asyncio.sleep(PAUSE_S)
            failure: ServeError = Overloaded("full")
            raise failure
        async for deltas in super().generate(request):
            yield deltas


async def test_another_entity_answers_after_comments_of_the_first() -> None:
    entities = [{"model": "demo"}, {"model": "org/other", "name": "other"}]
    endpoint = {"name": "both", "served_entities": entities, "traffic": {"demo": 100, "other": 0}}
    async with gateway(OneFails(), endpoints=[endpoint], sse_keepalive_s=ALIVE_S) as g:
        answer = await g.chat(model="both", stream=True)
        (record,) = g.journal.records
    parts = parts_of(answer.text)
    assert parts[0] == ":"
    assert parts[-1] == "data: [DONE]"
    assert json.loads(parts[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert record.entity == "other"
    assert "served-model-name" not in answer.headers  # when it began, nobody knew


async def test_a_client_that_leaves_while_it_hears_comments_ends_its_request() -> None:
    backend = FakeBackend(hang_after=0)
    async with gateway(backend, sse_keepalive_s=ALIVE_S) as g:
        async with served(g.app) as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            body = json.dumps(chat_body(stream=True)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            async with asyncio.timeout(10):
                await reader.readuntil(COMMENT)
                await reader.readuntil(COMMENT)
                writer.close()
                await backend.closed.wait()
        assert len(backend.aborted) == 1
        await g.check()


async def test_openais_client_hears_no_comment() -> None:
    backend = FakeBackend(pauses={0: PAUSE_S, 2: PAUSE_S})
    async with (
        gateway(backend, sse_keepalive_s=ALIVE_S) as g,
        served(g.app) as (host, port),
        AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="x") as client,
    ):
        stream = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hello!"}], stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "".join(backend.words)


class Wire:
    """A server's `send` that takes nothing while it is stuck."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.free = asyncio.Event()
        self.free.set()
        self.broken = False

    async def __call__(self, message: Message) -> None:
        await self.free.wait()
        if self.broken:
            raise OSError
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]


async def test_a_client_that_takes_no_comment_is_given_up() -> None:
    wire = Wire()
    wire.free.clear()

    async def answer() -> None:
        async with KeptAlive(wire, ALIVE_S, timeout_s=PAUSE_S) as writer:
            writer.allow({})
            await asyncio.Event().wait()

    async with asyncio.timeout(10):
        with pytest.raises(ClientGone):
            await answer()
        await asyncio.sleep(0)  # whoever was cancelled for it is not any more
    assert not wire.sent


@pytest.mark.parametrize("make", [Writer, partial(KeptAlive, seconds=60)])
async def test_a_client_that_takes_no_event_is_given_up(make: Callable[..., Writer]) -> None:
    wire = Wire()
    wire.free.clear()

    async def answer() -> None:
        async with make(wire, timeout_s=PAUSE_S) as writer:
            await writer.start(200, {})

    async with asyncio.timeout(10):
        with pytest.raises(ClientGone):
            await answer()
        await asyncio.sleep(0)  # whoever was cancelled for it is not any more
    assert not wire.sent


async def test_a_write_waits_for_the_comment_under_way() -> None:
    wire = Wire()
    async with KeptAlive(wire, ALIVE_S) as writer, asyncio.timeout(10):
        writer.allow({"a": "b"})
        wire.free.clear()
        while not writer.is_writing:
            await asyncio.sleep(0.005)
        asyncio.get_running_loop().call_later(PAUSE_S, wire.free.set)
        await writer.start(200, {"c": "d"})
        await writer.body(b"data: 1\n\n", more=True)
        await writer.body(b"", more=False)
        await asyncio.sleep(3 * ALIVE_S)
    assert wire.sent[0]["headers"] == [(b"a", b"b")]
    assert wire.bodies == [COMMENT, b"data: 1\n\n", b""]


async def test_no_comment_comes_before_it_is_allowed_or_while_events_come() -> None:
    wire = Wire()
    async with KeptAlive(wire, ALIVE_S) as writer:
        await asyncio.sleep(PAUSE_S)
        assert not wire.sent
    async with KeptAlive(wire, 60) as writer, asyncio.timeout(10):
        writer.allow({})
        await writer.start(200, {})
        for _ in range(20):  # a timer that is early, by as much as events came since
            await writer.body(b"data: 1\n\n", more=True)
            writer._sent -= 50
            writer._no_more()
            writer._pulse()
            await asyncio.sleep(0)
        assert COMMENT not in wire.bodies
        writer._sent -= 50
        writer._no_more()
        writer._pulse()
        while COMMENT not in wire.bodies:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("writes", [False, True])
async def test_a_connection_that_breaks_in_a_comment_ends_the_next_write(writes: bool) -> None:
    wire = Wire()
    wire.broken = True
    async with asyncio.timeout(10):
        async with KeptAlive(wire, ALIVE_S) as writer:
            writer.allow({})
            await asyncio.sleep(PAUSE_S)
            if writes:
                with pytest.raises(ClientGone):
                    await writer.body(b"data: 1\n\n", more=True)
    assert not wire.sent


async def test_a_plain_writer_has_begun_with_its_first_write() -> None:
    wire = Wire()
    async with Writer(wire) as writer:
        assert not writer.has_begun
        await writer.start(200, {})
        assert writer.has_begun
