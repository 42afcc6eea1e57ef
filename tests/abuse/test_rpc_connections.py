"""gRPC against clients that connect and then do nothing, in shorter times than usual."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from serve_app.accounts.keys import new_key
from serve_app.rpc import server
from serve_app.rpc.methods import HEALTH
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_metering import ListJournal
from tests.support.gateway import directory_of, fake_app
from tests.support.rpc_server import rpc_served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_, LINE = new_key("infer")
WAIT_S = 60.0

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def app():
    backend = FakeBackend()
    return fake_app(backend, LINE, directory_of(backend), ListJournal())


async def connected(address: str, begin: bytes) -> Ends:
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(begin)
    return reader, writer


async def is_closed(ends: Ends) -> bool:
    """Whether the server has closed it; what it says before is not looked at."""
    try:
        return not await ends[0].read(2**16)
    except ConnectionError:
        return True


async def until_closed(ends: Ends) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await is_closed(ends):
            pass


@pytest.mark.parametrize("begin", [b"", PREFACE[:9], PREFACE, PREFACE + SETTINGS])
async def test_a_connection_without_a_call_ends(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 1)
    monkeypatch.setattr(server, "IDLE_S", 1)
    async with rpc_served(app(), LINE) as address:
        ends = await connected(address, begin)
        await until_closed(ends)
        ends[1].close()


async def test_a_client_goes_on_when_its_idle_connection_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 1)
    async with rpc_served(app(), LINE) as address, grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary(HEALTH)
        assert await ask(b"") == b"\x08\x01"
        async with asyncio.timeout(WAIT_S):
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await asyncio.sleep(0.05)
        assert await ask(b"", timeout=WAIT_S) == b"\x08\x01"


async def test_connections_beyond_the_number_are_closed_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 5)
    async with rpc_served(app(), LINE) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            assert await channel.unary_unary(HEALTH)(b"") == b"\x08\x01"
            extra = [await connected(address, PREFACE + SETTINGS) for _ in range(20)]
            ending = [asyncio.create_task(until_closed(ends)) for ends in extra]
            async with asyncio.timeout(WAIT_S):
                while sum(task.done() for task in ending) < 16:
                    await asyncio.sleep(0.02)
            assert sum(task.done() for task in ending) == 16
            assert await channel.unary_unary(HEALTH)(b"") == b"\x08\x01"
            for task, (_, writer) in zip(ending, extra, strict=True):
                task.cancel()
                writer.close()
        async with asyncio.timeout(WAIT_S):  # and they can be had again
            while True:
                async with grpc.aio.insecure_channel(address) as channel:
                    try:
                        assert await channel.unary_unary(HEALTH)(b"", timeout=1) == b"\x08\x01"
                        return
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.1)
