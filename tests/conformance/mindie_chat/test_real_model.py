"""Chat with a real model: what only an engine can show."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import MODEL
from tests.support.gateway import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/mindie/v1/chat/completions"

VARIED = {"temperature": 2, "repetition_penalty": 2, "max_tokens": 40}  # the demo model is sure of itself


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    return {"model": MODEL, "messages": messages, "max_tokens": 12, **fields}


async def content(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post(PATH, json=body(**fields))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = [await content(client, seed=2**64 - 1, **VARIED) for _ in range(2)]
    together = await asyncio.gather(
        *(content(client, seed=2**64 - 1, **VARIED) for _ in range(8)),
        *(content(client, seed=seed, **VARIED) for seed in range(1, 9)),
    )
    assert set(alone) | set(together[:8]) == {alone[0]}
    assert len(set(together)) > 1


async def test_a_stream_has_the_text_of_a_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=body(seed=3, stream=True))
    chunks = events(answer.text)
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == await content(client, seed=3)
    assert all(chunk["choices"][0]["delta"].get("role") == "assistant" for chunk in chunks[:-1])


async def test_top_k_of_one_is_greedy(client: httpx.AsyncClient) -> None:
    texts = {await content(client, top_k=1, seed=seed, temperature=2) for seed in (1, 2, 3)}
    assert len(texts) == 1


async def test_a_prompt_beyond_the_window_is_refused(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "sea " * 2_000}]
    answer = await client.post(PATH, json=body(messages=messages))
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Input Validation Error")


async def test_the_output_may_run_into_the_end_of_the_window(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=body(max_tokens=512, ignore_eos=True, top_k=1))
    assert answer.status_code == 200
    usage = answer.json()["usage"]
    assert usage["total_tokens"] == 512
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert (await client.post(PATH, json=body(max_tokens=513))).status_code == 422


async def test_a_stop_string_ends_with_its_own_word(client: httpx.AsyncClient) -> None:
    text = await content(client, top_k=1)
    stop = text[3:6]
    answer = await client.post(PATH, json=body(top_k=1, stop=[stop]))
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop_sequence"
    assert choice["message"]["content"] == text[: text.index(stop)]
