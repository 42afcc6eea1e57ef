"""A server of the command that is told to stop while streams run: they finish, and new work is refused."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import httpx
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from tests.deploy.answers import completion
from tests.deploy.command import Command
from tests.deploy.deployment import CHAT, COMPLETIONS, DEMO
from tests.support.invariants import WAIT_S
from tests.support.rpc_server import tensors

Counted = TypeVar("Counted")

STREAMS: Final = 16
LONG: Final = 400  # tokens; sixteen such streams take seconds
# Without a number where a gateway is too busy to count.
_FINISHING: Final = re.compile(r"finishing (?:(\d+) )?answers?; Ctrl-C again stops at once")


async def check_stop(served: Command, stop: Callable[[], None]) -> int:
    """`stop` under sixteen streams: those end well, and the command soon after. Returns how many ended."""
    idle = socket.create_connection(("127.0.0.1", served.port))  # a keep-alive connection
    idle.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"200" in await asyncio.to_thread(idle.recv, 4096)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S, limits=limits) as client:
        ports = served.ports()
        assert ("127.0.0.1", served.port) in ports.values()
        running = await streams(client, until_refused)
        stop()
        await refusals(served, client)
        ended = [count for counts in await asyncio.gather(*running) for count in counts]
        assert ended == [LONG] * len(ended)
    assert await served.ended() == 0, served.said  # sooner than the idle connection does, which may for 90 s
    idle.close()
    finishing = _FINISHING.search(served.said)
    assert finishing is not None, served.said
    assert 1 <= int(finishing[1] or 1) <= STREAMS
    assert served.said.rstrip().endswith("serve: stopped"), served.said
    await served.leaves_nothing(ports)
    return len(ended)


async def stream(client: httpx.AsyncClient, begun: asyncio.Event, **fields: Any) -> int:
    """Tokens of one long stream that came to its proper end."""
    count = await _stream(client, begun, **fields)
    assert count is not None, "refused"
    return count


async def until_refused(client: httpx.AsyncClient, begun: asyncio.Event, *, seed: int) -> list[int]:
    """Tokens of long streams, one after the other: some run whenever the server hears that it is to stop.

    Streams of one length that begin together would also end together. So a first one, which does not count,
    is shorter, and of another length for each seed.
    """
    fields, first, counts = {"seed": seed}, LONG * (seed + 1) // (STREAMS + 1), []
    assert await _stream(client, begun, first, **fields) in (first, None)
    while (count := await _stream(client, begun, **fields)) is not None:
        counts.append(count)
    return counts


async def _stream(
    client: httpx.AsyncClient, begun: asyncio.Event, length: int = LONG, **fields: Any
) -> int | None:
    """Tokens of one stream that came to its proper end; None if a server that stops refused it."""
    body = {
        **completion(DEMO, max_tokens=length, **fields),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = ""
    usage = None
    async with client.stream("POST", COMPLETIONS, json=body) as response:
        if response.status_code == 503:
            assert b"stopping" in await response.aread()
            return None
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            begun.set()
            if line:
                last = line.removeprefix("data: ")
            if last.startswith("{"):
                usage = json.loads(last).get("usage") or usage
    assert last == "[DONE]"
    assert usage is not None
    return int(usage["completion_tokens"])


async def streams(
    client: httpx.AsyncClient, run: Callable[..., Coroutine[Any, Any, Counted]]
) -> list[asyncio.Task[Counted]]:
    """Sixteen of `run`, once each has its first event."""
    begun = [asyncio.Event() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(run(client, each, seed=index)) for index, each in enumerate(begun)]
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in begun)), WAIT_S)
    return tasks


async def refusals(served: Command, client: httpx.AsyncClient) -> None:
    """Readiness is gone and new work is refused, in the words of each protocol; life goes on."""
    async with asyncio.timeout(WAIT_S):
        while (await client.get("/readyz")).status_code != 503:
            await asyncio.sleep(0.01)
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/v2/health/ready")).status_code == 400
    bodies = {
        CHAT: {"model": DEMO, "messages": [{"role": "user", "content": "Hi!"}]},
        "/v1/embeddings": {"model": DEMO, "input": "Hi!"},
        "/serving-endpoints/demo-chat/invocations": {"messages": [{"role": "user", "content": "Hi!"}]},
        "/mindie/v1/chat/completions": {"model": DEMO, "messages": [{"role": "user", "content": "Hi!"}]},
        "/v3/chat/completions": {"model": DEMO, "messages": [{"role": "user", "content": "Hi!"}]},
        "/v2/models/demo-chat/generate": {"text_input": "Hi!", "max_tokens": 4},
    }
    shapes = []
    for path, body in bodies.items():
        answer = await client.post(path, json=body)
        assert answer.status_code == 503, (path, answer.text)
        assert int(answer.headers["retry-after"]) >= 1, path
        assert "stopping" in answer.text, path
        shapes.append(sorted(answer.json()))
    assert len({tuple(shape) for shape in shapes}) > 2  # each protocol has its own
    async with triton.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as rpc:
        assert not await rpc.is_server_ready()
        with pytest.raises(InferenceServerException) as caught:
            await rpc.infer(DEMO, tensors([5, 6, 7], 4))
        assert "UNAVAILABLE" in caught.value.status()
