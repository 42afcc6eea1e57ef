"""gRPC against strangers, callers without the right, and messages that are too large, wrong or hostile."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from serve_app.accounts.keys import new_key
from serve_app.limits import MAX_ERROR_BYTES, MAX_TENSOR_BODY_BYTES
from serve_app.rpc import call as rpc_call
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.methods import HEALTH, METHODS, REFLECTION, SERVICE
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_metering import ListJournal
from tests.support.gateway import directory_of, fake_app
from tests.support.rpc_server import rpc_served

KEY, LINE = new_key("infer")
SCRAPER, SCRAPER_LINE = new_key("scraper", [Scope.METRICS])
KEYS = f"{LINE} {SCRAPER_LINE}"
INFER, STREAM = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"
STREAMS = (STREAM, *REFLECTION)  # no message is no mistake there
CLOSED = {path: method for path, method in METHODS.items() if method.scope is not None}
UNKNOWN = [
    f"/{SERVICE}/SystemSharedMemoryStatus", f"/{SERVICE}/modelinfer", f"/{SERVICE}/", f"/{SERVICE}",
    "/inference.Other/ModelInfer", "/grpc.reflection.v2.ServerReflection/ServerReflectionInfo",
    "/ray.serve.RayServeAPIService/Healthz", "/livez", "/v1/models", "/", f"/{SERVICE}/ModelInfer/",
    f"//{SERVICE}/ModelInfer", f"/{SERVICE}/../{SERVICE}/ModelInfer",
    "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/check",
]  # fmt: skip
WAIT_S = 60.0


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def ids(count: int = 2, output_len: int = 3, **fields: Any) -> pb.ModelInferRequest:
    """A request of `count` tokens to the fake model."""
    message = pb.ModelInferRequest(model_name="demo", id="1")
    message.inputs.add(name="input_ids", datatype="INT32", shape=[1, count])
    message.inputs.add(name="request_output_len", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.extend([b"\x05\0\0\0" * count, output_len.to_bytes(4, "little")])
    for name, value in fields.items():
        message.inputs.add(name=name, datatype="BOOL", shape=[1, 1])
        message.raw_input_contents.append(bytes([value]))
    return message


class Wire:
    """Bytes to and from any method, without a client's own checks."""

    def __init__(self, channel: grpc.aio.Channel, backend: FakeBackend, journal: ListJournal) -> None:
        self.channel = channel
        self.backend = backend
        self.journal = journal

    async def ask(
        self, path: str, *messages: bytes, key: str | None = KEY, metadata: Any = (), **options: Any
    ) -> tuple[grpc.StatusCode, str, list[bytes]]:
        """Status, details and messages of a call that says `messages`."""
        known = bearer(key) if key is not None else []
        call = self.channel.stream_stream(path)(
            iter(messages), metadata=[*known, *metadata], timeout=WAIT_S, **options
        )
        found: list[bytes] = []
        try:
            async for message in call:
                found.append(message)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or "", found
        return await call.code(), await call.details(), found

    async def refused(
        self, path: str, key: str | None = KEY, metadata: Any = (), message: bytes = b""
    ) -> tuple[grpc.StatusCode, str]:
        """Status and details of a call that gets no message.

        With one message, sent at once: where a refusal overtakes a message that a stream still
        writes, grpc.aio's client reports its own failure to write instead.
        """
        known = bearer(key) if key is not None else []
        call = self.channel.unary_unary(path)(
            message or ids().SerializeToString(), metadata=[*known, *metadata], timeout=WAIT_S
        )
        return await call.code(), await call.details() or ""

    async def check(self) -> None:
        """Nothing runs, every record is closed, and a fresh request is answered."""
        async with asyncio.timeout(WAIT_S):
            while self.backend.running or self.journal.open:
                await asyncio.sleep(0.01)
        fresh = FakeBackend()
        for name in ("words", "refuse", "hang_after", "burst"):
            setattr(self.backend, name, getattr(fresh, name))
        code, details, messages = await self.ask(INFER, ids().SerializeToString())
        assert (code, len(messages)) == (grpc.StatusCode.OK, 1), details
        assert not self.journal.open


@asynccontextmanager
async def wire(
    keys: str = KEYS, host: str = "127.0.0.1", options: Iterable[tuple[str, int]] = (), **config: Any
) -> AsyncIterator[Wire]:
    """`options`: of the client's channel."""
    backend, journal = FakeBackend(), ListJournal()
    endpoints = config.pop("endpoints", None)
    app = fake_app(backend, keys, directory_of(backend, endpoints), journal, **config)
    options = [*options, ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with rpc_served(app, keys, host) as url, grpc.aio.insecure_channel(url, options=options) as channel:
        yield Wire(channel, backend, journal)


def test_every_method_names_the_scope_it_needs() -> None:
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert CLOSED.keys() == {f"/{SERVICE}/{method.name}" for method in service.methods} | {*REFLECTION}
    assert {method.scope for method in CLOSED.values()} <= {*Scope}
    assert METHODS.keys() - CLOSED.keys() == {HEALTH}
    assert METHODS[HEALTH].scope is None


@pytest.mark.parametrize("loading", [set(), {"demo"}])
async def test_the_health_check_is_open_and_tells_nothing_but_yes_or_no(loading: set[str]) -> None:
    async with wire() as w:
        w.backend.loading = loading
        for message in (b"", b"\x0a\x03xyz", b"\xff" * 1_000):
            code, details, (answer,) = await w.ask(HEALTH, message, key=None)
            assert (code, details) == (grpc.StatusCode.OK, "")
            assert answer == (b"\x08\x02" if loading else b"\x08\x01")  # NOT_SERVING, SERVING


@pytest.mark.parametrize("path", [*CLOSED, *UNKNOWN])
async def test_strangers_are_refused_everywhere_alike(path: str) -> None:
    async with wire() as w:
        for key in (None, "sk-wrong", "", KEY[:-1], KEY + "x", KEY.upper()):
            code, details = await w.refused(path, key)
            assert code is grpc.StatusCode.UNAUTHENTICATED, key
            assert KEY not in details
        for metadata in ([("authorization", KEY)], [("x-api-key", KEY)], [("x-forwarded-for", "127.0.0.1")]):
            code, _ = await w.refused(path, None, metadata)
            assert code is grpc.StatusCode.UNAUTHENTICATED
        assert not w.backend.requests
        await w.check()


@pytest.mark.parametrize("path", CLOSED)
async def test_a_key_without_the_scope_is_refused(path: str) -> None:
    async with wire() as w:
        code, details = await w.refused(path, SCRAPER)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert str(METHODS[path].scope) in details
        assert not w.backend.requests


@pytest.mark.parametrize("path", UNKNOWN)
async def test_methods_that_nobody_serves_are_unimplemented_for_callers(path: str) -> None:
    async with wire() as w:
        code, _ = await w.refused(path, message=b"\xff" * 100)
        assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_without_keys_only_this_machine_is_served() -> None:
    async with wire(keys="") as near:
        code, details, _ = await near.ask(INFER, ids().SerializeToString(), key=None)
        assert code is grpc.StatusCode.OK, details
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = probe.getsockname()[0]
    async with wire(keys="", host=host) as far:
        for path in (*CLOSED, *UNKNOWN):
            code, details = await far.refused(path, None)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "no API key is configured" in details
        forged = [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=127.0.0.1"), ("x-real-ip", "::1")]
        code, _ = await far.refused(INFER, None, forged)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert not far.backend.requests


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_a_message_beyond_the_limit_is_refused_and_the_largest_is_not(path: str) -> None:
    async with wire() as w:
        code, details, _ = await w.ask(path, bytes(MAX_TENSOR_BODY_BYTES + 1))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, details
        huge = ids((MAX_TENSOR_BODY_BYTES - 1_000) // 4).SerializeToString()
        assert 4 * 2**20 < len(huge) <= MAX_TENSOR_BODY_BYTES
        code, details, messages = await w.ask(path, huge)
        if path == INFER:
            assert code is grpc.StatusCode.OK, details
        else:
            assert pb.ModelStreamInferResponse.FromString(messages[0]).infer_response.id == "1"
        await w.check()


async def test_other_methods_take_small_messages_alone() -> None:
    async with wire() as w:
        code, details, _ = await w.ask(f"/{SERVICE}/ModelReady", b"\x0a\x80\x80\x80\x08" + bytes(2**24))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "8388608 bytes" in details
        await w.check()


async def test_a_bomb_is_as_large_as_what_it_becomes() -> None:
    async with wire() as w:
        raw = bytes(8 * MAX_TENSOR_BODY_BYTES)
        assert len(gzip.compress(raw, 1)) < MAX_TENSOR_BODY_BYTES / 20
        code, _, _ = await w.ask(INFER, raw, compression=grpc.Compression.Gzip)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await w.check()


async def test_a_strangers_long_message_is_not_waited_for() -> None:
    async with wire() as w:
        sent = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            await sent.wait()
            yield b""

        call = w.channel.stream_stream(INFER)(slow(), timeout=WAIT_S)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        sent.set()


@pytest.mark.parametrize("path", CLOSED)
async def test_no_bytes_break_a_method(path: str) -> None:
    rng = random.Random(path)
    whole = ids(streaming=False).SerializeToString()
    async with wire() as w:
        for i in range(40):
            raw = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            if i % 4 == 0:
                raw = raw[: rng.randrange(len(raw))]
            if i % 5 == 0:
                raw = bytearray(rng.randbytes(rng.randint(1, 60)))
            code, details, _ = await w.ask(path, bytes(raw))
            assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (bytes(raw), details)
            assert len(details.encode()) < MAX_ERROR_BYTES
        code, _, _ = await w.ask(path)  # no message at all
        assert code is (grpc.StatusCode.OK if path in STREAMS else grpc.StatusCode.INVALID_ARGUMENT)
        await w.check()


@pytest.mark.parametrize(
    "raw", [[b""], [b"1", b"2", b"3"], [b"\x05\0\0", b"\x03\0\0\0"], [b"\x05\0\0\0" * 3, b"\x03\0\0\0"]]
)
async def test_raw_contents_that_do_not_fit_are_refused(raw: list[bytes]) -> None:
    async with wire() as w:
        message = ids()
        del message.raw_input_contents[:]
        message.raw_input_contents.extend(raw)
        code, details, _ = await w.ask(INFER, message.SerializeToString())
        assert code is grpc.StatusCode.INVALID_ARGUMENT, details
        code, _, (answer,) = await w.ask(STREAM, message.SerializeToString())
        assert code is grpc.StatusCode.OK
        assert pb.ModelStreamInferResponse.FromString(answer).error_message == details
        await w.check()


async def test_a_full_gateway_says_so_and_comes_back() -> None:
    async with wire(max_in_flight=2) as w:
        w.backend.hang_after = 0
        calls = [w.channel.unary_unary(INFER)(ids().SerializeToString(), metadata=bearer(KEY)) for _ in "ab"]
        async with asyncio.timeout(WAIT_S):
            while w.backend.running < 2:
                await asyncio.sleep(0.01)
        refused = w.channel.unary_unary(INFER)(ids().SerializeToString(), metadata=bearer(KEY))
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(await refused.trailing_metadata())["retry-after"] == "1"
        _, _, (answer,) = await w.ask(STREAM, ids().SerializeToString())
        error = pb.ModelStreamInferResponse.FromString(answer)
        assert "capacity" in error.error_message
        assert error.infer_response.id == "1"
        _, _, (answer,) = await w.ask(STREAM, ids(stop=True).SerializeToString())
        assert pb.ModelStreamInferResponse.FromString(answer).error_message == ""
        for call in calls:
            assert await call.code() is grpc.StatusCode.OK  # both had the id
        w.backend.hang_after = 0
        calls = [w.channel.unary_unary(INFER)(ids().SerializeToString(), metadata=bearer(KEY)) for _ in "ab"]
        async with asyncio.timeout(WAIT_S):
            while w.backend.running < 2:
                await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        await w.check()


async def test_budgets_are_those_of_http() -> None:
    endpoints = [{"name": "demo", "kind": "pay_per_token", "limits": {"requests_per_minute": 2}}]
    async with wire(endpoints=endpoints) as w:
        for _ in range(2):
            code, details, _ = await w.ask(INFER, ids().SerializeToString())
            assert code is grpc.StatusCode.OK, details
        refused = w.channel.unary_unary(INFER)(ids().SerializeToString(), metadata=bearer(KEY))
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(await refused.trailing_metadata())
        assert told["x-ratelimit-remaining-requests"] == "0"
        assert int(told["retry-after"]) > 0
        assert [record.outcome for record in w.journal.records] == ["finished"] * 2


async def test_every_request_of_a_stream_has_a_record_of_its_own() -> None:
    async with wire() as w:
        good, bad = ids(), ids(bogus=True)
        messages = [good.SerializeToString(), bad.SerializeToString(), good.SerializeToString()]
        code, _, answers = await w.ask(STREAM, *messages)
        assert (code, len(answers)) == (grpc.StatusCode.OK, 3)
        records = w.journal.records
        assert [(r.outcome, r.status, r.route, r.key_id) for r in records] == [
            ("finished", 200, STREAM, "infer")
        ] * 2
        assert len({record.id for record in records}) == 2


async def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_call, "WRITE_TIMEOUT_S", 0.3)
    async with wire(options=[("grpc.http2.bdp_probe", 0)]) as w:  # a window of 64 KiB is soon full
        w.backend.words = ("x",) * 100_000
        call = w.channel.stream_stream(STREAM)(metadata=bearer(KEY))
        await call.write(ids(streaming=True).SerializeToString())
        await call.read()
        async with asyncio.timeout(WAIT_S):
            while not w.journal.records:
                await asyncio.sleep(0.05)
        (record,) = w.journal.records
        assert record.outcome == "aborted"
        assert record.completion_tokens < len(w.backend.words)
        call.cancel()
        await w.check()


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(path)
    async with wire() as w:
        w.backend.words = ("x",) * 300
        for _ in range(40):
            call = w.channel.stream_stream(path)(metadata=bearer(KEY))
            for _ in range(1 if path == INFER else 3):
                await call.write(ids(streaming=path == STREAM).SerializeToString())
            for _ in range(rng.randrange(4) if path == STREAM else 0):
                await call.read()
            if path == INFER:
                await asyncio.sleep(rng.random() / 100)
            call.cancel()
        await w.check()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_stopped_request_is_its_callers_own() -> None:
    other, other_line = new_key("other")
    async with wire(keys=f"{LINE} {other_line}") as w:
        w.backend.hang_after = 1
        call = w.channel.stream_stream(STREAM)(metadata=bearer(KEY))
        await call.write(ids(streaming=True).SerializeToString())
        await call.read()
        stop = ids(stop=True).SerializeToString()
        code, _, _ = await w.ask(INFER, stop, key=other)
        assert code is grpc.StatusCode.OK
        assert w.backend.running == 1
        await w.ask(INFER, stop)
        last = pb.ModelStreamInferResponse.FromString(await call.read()).infer_response
        assert last.parameters["triton_final_response"].bool_param
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await w.check()


async def test_keywords_of_a_schema_that_are_not_enforced_are_told_as_over_http() -> None:
    message = ids()
    for name, text in (
        ("guided_decoding_guide_type", b"json_schema"),
        ("guided_decoding_guide", b'{"type":"array","uniqueItems":true}'),
    ):
        message.inputs.add(name=name, datatype="BYTES", shape=[1, 1])
        message.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    async with wire() as w:
        answered = w.channel.unary_unary(INFER)(message.SerializeToString(), metadata=bearer(KEY))
        assert await answered.code() is grpc.StatusCode.OK, await answered.details()
        told = dict(await answered.trailing_metadata())
        assert told["x-ignored-fields"] == "guided_decoding_guide.uniqueItems"
