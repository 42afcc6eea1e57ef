"""What uvicorn answers a client of HTTP/1.0, read from the socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from uvicorn.protocols.http import httptools_impl

from serve_app.deployments.http10 import speak_http10
from tests.support.gateway import CHAT, chat_body, events, gateway, served


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    former = httptools_impl.RequestResponseCycle
    speak_http10()
    yield
    httptools_impl.RequestResponseCycle = former  # type: ignore[misc]


async def read(version: str, *, stream: bool, method: str = "POST", path: str = CHAT) -> tuple[str, str]:
    """Head and body of the answer, as they came."""
    body = json.dumps(chat_body(stream=stream)).encode() if method == "POST" else b""
    async with gateway() as g, served(g.app) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        head = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        found = (await asyncio.wait_for(reader.read(), 30)).decode()
        writer.close()
    head, _, rest = found.partition("\r\n\r\n")
    return head.lower(), rest


async def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_the_connection() -> None:
    head, body = await read("1.0", stream=True)
    assert "transfer-encoding" not in head
    assert "content-length" not in head
    assert "connection: close" in head
    assert events(body)


async def test_an_answer_with_a_length_keeps_it() -> None:
    head, body = await read("1.0", stream=False)
    assert f"content-length: {len(body.encode())}" in head
    assert json.loads(body)["choices"]
    head, body = await read("1.0", stream=False, method="HEAD", path="/v1/models")
    assert ("content-length" in head, body) == (True, "")


async def test_a_stream_over_http_1_1_has_chunks() -> None:
    head, body = await read("1.1", stream=True)
    assert "transfer-encoding: chunked" in head
    assert body.endswith("0\r\n\r\n")
