"""Bodies that are too large, too slow or not as long as they say, over a real socket."""

import asyncio
import json

import pytest

from serve_app.limits import MAX_BODY_BYTES
from tests.support.gateway import CHAT, chat_body, gateway, served

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def exchange(address, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send `pieces` until the server answers, then read until it closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        answer = asyncio.ensure_future(reader.read())
        for piece in pieces:
            if answer.done():
                break
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
        if half_close:
            writer.write_eof()
        return await asyncio.wait_for(answer, 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_declared_length_over_the_cap_is_refused_before_it_is_sent():
    async with gateway() as g, served(g.app) as address:
        for length in (MAX_BODY_BYTES + 1, 2 * 2**30, 10**30):
            answer = await exchange(address, f"{HEAD}Content-Length: {length}\r\n\r\n{{".encode())
            if length == 10**30:  # the server itself may refuse such a header
                assert answer.split()[1] in (b"413", b"400")
                continue
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in answer.lower()
            assert b'"code":"request_too_large"' in answer
        await g.check()


async def test_chunks_without_end_are_cut_at_the_cap():
    async with gateway() as g, served(g.app) as address:
        piece = chunk(b" " * 2**20)
        answer = await exchange(address, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), *[piece] * 64)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
        await g.check()


async def test_many_one_byte_chunks_are_read_like_any_body():
    body = json.dumps(chat_body()).encode()
    body += b" " * (8_192 - len(body))
    async with gateway() as g, served(g.app) as address:
        head = f"{HEAD}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        sent = b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
        answer = await exchange(address, head, sent)
        assert answer.startswith(b"HTTP/1.1 200 ")
        await g.check()


@pytest.mark.full
async def test_65536_one_byte_chunks():
    body = json.dumps(chat_body()).encode()
    body += b" " * (65_536 - len(body))
    async with gateway() as g, served(g.app) as address:
        head = f"{HEAD}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        sent = b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
        assert (await exchange(address, head, sent)).startswith(b"HTTP/1.1 200 ")
        await g.check()


async def test_a_body_shorter_than_declared_never_reaches_the_backend():
    async with gateway() as g, served(g.app) as address:
        body = json.dumps(chat_body()).encode()
        await exchange(
            address, f"{HEAD}Content-Length: {len(body) + 9}\r\n\r\n".encode() + body, half_close=True
        )
        assert not g.backend.requests
        await g.check()


async def test_a_sender_that_stops_is_told_408_and_disconnected(monkeypatch):
    monkeypatch.setattr(
        "serve_app.api.edge.body.read_body.__kwdefaults__",
        {"max_bytes": MAX_BODY_BYTES, "idle_s": 0.05, "total_s": 1.0},
    )
    async with gateway() as g, served(g.app) as address:
        answer = await exchange(address, f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
        assert answer.startswith(b"HTTP/1.1 408 ")
        await g.check()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_mid_stream_frees_its_request(reset):
    async with gateway() as g, served(g.app) as address:
        g.backend.hang_after = 2
        body = json.dumps(chat_body(stream=True)).encode()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"aus")
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        await asyncio.wait_for(g.backend.closed.wait(), 60)
        assert g.backend.aborted == [g.backend.last.id]
        while g.backend.running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await g.check()


async def test_64_streams_at_once_finish():
    async with gateway() as g:
        answers = await asyncio.gather(*(g.chat(stream=True) for _ in range(64)))
        assert len({a.text.count("data: ") for a in answers}) == 1
        assert all(a.status_code == 200 and a.text.endswith("data: [DONE]\n\n") for a in answers)
        await g.check()
