"""The unmodified tritonclient against a whole server: the gateway's own gRPC port, replica and engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from serve_app.endpoints.rules import app_name
from serve_app.types import EngineStats
from tests.support.ray_cluster import Cluster, engine_stats
from tests.support.rpc_server import is_final, output_ids, stop, tensors
from tests.support.served import GRPC_PORT, MODEL, WAIT_S

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [5, 6, 7]
STREAMS = 32


@pytest.fixture(scope="module")
def url(demo_chat: Cluster) -> str:
    """The address of gRPC, once the model behind it is ready."""
    found = f"127.0.0.1:{GRPC_PORT}"
    deadline = time.monotonic() + WAIT_S
    with triton.InferenceServerClient(found) as client:
        while not _is_ready(client):
            if time.monotonic() > deadline:
                raise TimeoutError("gRPC did not become ready")
            time.sleep(0.1)
    return found


def _is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except InferenceServerException:
        return False


async def idle() -> EngineStats:
    """The engine's own numbers, once it holds nothing. Raises TimeoutError."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = await engine_stats(app_name(MODEL))
            if not (stats.running or stats.waiting or stats.blocks_used):
                return stats
            await asyncio.sleep(0.1)


def request(id: str, inputs: list[Any]) -> dict[str, Any]:
    return {"model_name": MODEL, "inputs": inputs, "request_id": id}


async def streamed(url: str, requests: list[dict[str, Any]]) -> dict[str, list[tuple[list[int], bool]]]:
    """Tokens and final flag of every response of one stream, by id."""

    async def sent() -> AsyncIterator[dict[str, Any]]:
        for each in requests:
            yield each

    found: dict[str, list[tuple[list[int], bool]]] = {}
    async with triton_aio.InferenceServerClient(url) as client:
        async for result, error in client.stream_infer(sent()):
            assert error is None, error
            responses = found.setdefault(result.get_response().id, [])
            responses.append((output_ids(result), is_final(result)))
    return found


async def whole(url: str, ids: list[int], output_len: int) -> list[int]:
    async with triton_aio.InferenceServerClient(url) as client:
        return output_ids(await client.infer(MODEL, tensors(ids, output_len)))


async def test_one_answer_and_the_same_as_a_stream(url: str) -> None:
    tokens = await whole(url, PROMPT, 12)
    assert len(tokens) == 12
    (responses,) = (await streamed(url, [request("1", tensors(PROMPT, 12, streaming=True))])).values()
    assert responses == [([token], i == 11) for i, token in enumerate(tokens)]


async def test_the_blocking_client_streams(url: str) -> None:
    def talk() -> list[int]:
        found: list[int] = []
        done = threading.Event()

        def hear(result: Any, error: Any) -> None:
            assert error is None
            found.extend(output_ids(result))
            if is_final(result):
                done.set()

        with triton.InferenceServerClient(url) as client:
            client.start_stream(callback=hear)
            client.async_stream_infer(MODEL, tensors(PROMPT, 12, streaming=True), request_id="1")
            assert done.wait(60)
            client.stop_stream()
        return found

    assert await asyncio.to_thread(talk) == await whole(url, PROMPT, 12)


async def test_one_of_several_requests_of_a_stream_is_stopped(url: str) -> None:
    sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        while (each := await sent.get()) is not None:
            yield each

    for i in range(3):
        sent.put_nowait(request(str(i), tensors([5 + i, 6], 60, streaming=True)))
    sent.put_nowait(request("mine", tensors([9], 450, streaming=True)))
    found: dict[str, list[int]] = {}
    ends: dict[str, int] = {}
    async with triton_aio.InferenceServerClient(url) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            id = result.get_response().id
            if id == "mine" and id not in found:
                sent.put_nowait(request("mine", stop()))
                sent.put_nowait(None)
            found.setdefault(id, []).extend(output_ids(result))
            ends[id] = ends.get(id, 0) + is_final(result)
    assert ends == {"0": 1, "1": 1, "2": 1, "mine": 2}
    assert len(found["mine"]) < 450
    for i in range(3):
        assert found[str(i)] == await whole(url, [5 + i, 6], 60)
    await idle()


async def test_a_cancelled_call_frees_its_sequences(url: str) -> None:
    async def forever() -> AsyncIterator[dict[str, Any]]:
        yield request("1", tensors(PROMPT, 450, streaming=True))
        await asyncio.Event().wait()

    async with triton_aio.InferenceServerClient(url) as client:
        responses = client.stream_infer(forever())
        for _ in range(5):
            await anext(responses)
        assert responses.cancel()
        await idle()


@pytest.mark.parametrize(
    ("model", "scalars", "status"),
    [
        ("nobody", {}, "NOT_FOUND"),
        (MODEL, {"streaming": True}, "UNIMPLEMENTED"),
        (MODEL, {"beam_width": 0}, "INVALID_ARGUMENT"),
    ],
)
async def test_a_refusal_has_a_status(url: str, model: str, scalars: dict[str, Any], status: str) -> None:
    async with triton_aio.InferenceServerClient(url) as client:
        with pytest.raises(InferenceServerException) as caught:
            await client.infer(model, tensors(PROMPT, **scalars))
    assert caught.value.status() == f"StatusCode.{status}"


async def test_concurrent_streams_lose_nothing(url: str) -> None:
    prompts = {str(i): [5 + i, 6] for i in range(STREAMS)}
    answers = await asyncio.gather(
        *(streamed(url, [request(id, tensors(ids, 20, streaming=True))]) for id, ids in prompts.items())
    )
    found = {id: responses for each in answers for id, responses in each.items()}
    assert found.keys() == prompts.keys()
    for responses in found.values():
        assert [len(tokens) for tokens, _ in responses] == [1] * 20
        assert [final for _, final in responses] == [False] * 19 + [True]
    stats = await idle()
    assert stats.blocks_used == 0
    for id in ("0", "13", "31"):
        assert [tokens[0] for tokens, _ in found[id]] == await whole(url, prompts[id], 20)
