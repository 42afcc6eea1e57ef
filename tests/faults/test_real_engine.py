"""Faults over HTTP, through HAProxy, gateway and replica, on the real engine with the demo model.

Each ends with the five invariants of tests/support/invariants.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
from ray import serve

from serve_app.endpoints.rules import app_name
from serve_app.types import EngineStats
from tests.support.invariants import WAIT_S, Served, Watch, children, unharmed
from tests.support.ray_cluster import Cluster, engine_stats
from tests.support.served import MODEL

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(demo_chat: Cluster) -> AsyncIterator[Served]:
    async with httpx.AsyncClient(base_url=demo_chat.url, timeout=WAIT_S) as client:
        yield Served(client, MODEL, processes, stats)


def processes() -> list[psutil.Process]:
    return children("ServeReplica:system", f"ServeReplica:{app_name(MODEL)}")


async def stats() -> EngineStats:
    return await engine_stats(app_name(MODEL))


def body(prompt: str = "Once upon a time", **fields: Any) -> dict[str, Any]:
    base = {"model": MODEL, "prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    return base | {"stream": True} | fields


def connect(cluster: Cluster, wanted: dict[str, Any]) -> socket.socket:
    """A raw connection with the request sent: what the client library would not let us do."""
    payload = json.dumps(wanted).encode()
    sock = socket.create_connection(("127.0.0.1", cluster.port), timeout=WAIT_S)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(payload)}\r\n\r\n"
    sock.sendall(head.encode() + payload)
    return sock


async def read_until(sock: socket.socket, marker: bytes) -> bytes:
    seen = b""
    while marker not in seen:
        piece = await asyncio.to_thread(sock.recv, 4096)
        assert piece, seen
        seen += piece
    return seen


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_f2_a_client_that_leaves_in_the_middle_frees_its_sequence(
    server: Served, demo_chat: Cluster, how: str
) -> None:
    async with unharmed(server) as watch, asyncio.timeout(WAIT_S):
        while not await cut_short(server, demo_chat, watch, how):
            pass  # the clients were held up for so long that they got all


async def cut_short(server: Served, demo_chat: Cluster, watch: Watch, how: str) -> bool:
    """Whether six clients that leave at their first token spared the engine some of their tokens."""
    generated = (await server.engine()).generated_tokens
    socks = [await asyncio.to_thread(connect, demo_chat, body()) for _ in range(6)]
    watch.sent += len(socks)
    for sock in socks:
        await read_until(sock, b'"text"')
    for sock in socks:
        sock.close() if how == "fin" else reset(sock)
    while (stats := await server.engine()).running + stats.waiting > 1:  # the neighbour
        await asyncio.sleep(0.05)
    return stats.generated_tokens - generated < 6 * 300


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.full)])
async def test_f2_a_client_that_leaves_while_queued_or_in_prefill_is_forgotten(
    server: Served, demo_chat: Cluster, count: int
) -> None:
    long_prompt = "one two three four five " * 60
    async with unharmed(server) as watch:
        asked = body(long_prompt, max_tokens=9)
        socks = [await asyncio.to_thread(connect, demo_chat, asked) for _ in range(count)]
        watch.sent += len(socks)
        await watch.until_arrived(server, count)
        for number, sock in enumerate(socks):
            reset(sock) if number % 2 else sock.close()


async def test_f2_a_client_that_leaves_at_the_last_token_changes_nothing(
    server: Served, demo_chat: Cluster
) -> None:
    async with unharmed(server) as watch:
        for _ in range(5):
            sock = await asyncio.to_thread(connect, demo_chat, body(max_tokens=5))
            await read_until(sock, b'"finish_reason":"length"')
            reset(sock)
            watch.sent += 1


@pytest.mark.parametrize("name", ["x-request-disconnect-disabled", "x-request-timeout-seconds"])
async def test_f3_headers_that_steer_the_proxy_are_refused(server: Served, name: str) -> None:
    async with unharmed(server):
        answer = await server.client.post("/v1/completions", json=body(), headers={name: "?1"})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]


async def test_f7_more_than_the_cache_holds_is_preempted_and_answers_the_same(server: Served) -> None:
    prompts = [f"Number {i}: the story of the {word}" for i, word in enumerate(["sea", "sun", "cat", "tree"])]
    options = [{"temperature": 0}, {"temperature": 1.0, "seed": 7}]
    wanted = [
        body(prompt, stream=False, max_tokens=250, **option) for prompt in prompts for option in options
    ]

    async def ask(one: dict[str, Any]) -> tuple[str, int]:
        answer = await server.complete(**{k: v for k, v in one.items() if k != "model"})
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]

    async with unharmed(server) as watch, asyncio.timeout(WAIT_S):
        lone = [await ask(one) for one in wanted]
        watch.sent += len(wanted)
        before = (await server.engine()).preemptions
        while (await server.engine()).preemptions == before:  # else they came one after another
            together = await asyncio.gather(*map(ask, wanted))
            watch.sent += len(wanted)
            assert together == lone
            assert all(count == 250 for _, count in together)


async def test_f7_what_can_never_fit_is_refused_at_once(server: Served) -> None:
    async with unharmed(server) as watch:
        answer = await server.client.post("/v1/completions", json=body("word " * 3000))
        watch.sent += 1
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.full
async def test_64_concurrent_streams_of_the_real_engine_end_well(server: Served) -> None:
    async def one(number: int) -> tuple[str, int]:
        wanted = body(f"{number} and", max_tokens=40, stream_options={"include_usage": True})
        text, tokens, done = "", 0, False
        async with server.client.stream("POST", "/v1/completions", json=wanted) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        assert done
        return text, tokens

    async with unharmed(server) as watch:
        answers = await asyncio.gather(*(one(i) for i in range(64)))
        watch.sent += 64
        assert all(tokens == 40 for _, tokens in answers)


async def test_f12_streams_in_a_crowd_say_what_they_say_alone(server: Served) -> None:
    prompts = [f"What is {i} plus {i + 3}?" for i in range(20)]

    async def chat(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        wanted = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0.7, "seed": 3}
        answer = await server.client.post("/v1/chat/completions", json=wanted)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    async with unharmed(server) as watch:
        alone = [await chat(prompt) for prompt in prompts]
        assert await asyncio.gather(*map(chat, prompts)) == alone
        watch.sent += 2 * len(prompts)


@pytest.mark.full  # test_replica_faults.py stops a replica too
async def test_f10_a_stopping_model_finishes_its_streams_and_refuses_new_ones(server: Served) -> None:
    """Last in this file: it ends the model."""

    async def one(begun: asyncio.Event) -> list[str]:
        lines = []
        async with server.client.stream("POST", "/v1/completions", json=body(max_tokens=400)) as response:
            async for line in response.aiter_lines():
                begun.set()
                if line.startswith("data: "):
                    lines.append(line)
        return lines

    begun = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(one(each)) for each in begun]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(each.wait() for each in begun))
    await asyncio.to_thread(serve.delete, app_name(MODEL))
    for lines in await asyncio.gather(*tasks):
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2]
    refused = await server.client.post("/v1/completions", json=body(stream=False))
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
