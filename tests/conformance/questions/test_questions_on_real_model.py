"""/tokenize, /detokenize and /v1/watermark/detect with a real model: they agree with its answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance import conftest

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "What is the capital of France? Größe 😀"}]
STORY = "Once upon a time, in Köln"


async def ask(client: httpx.AsyncClient, path: str, **fields: Any) -> Any:
    answer = await client.post(path, json={"model": conftest.MODEL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_chats_count_is_what_its_answer_is_charged(client: httpx.AsyncClient) -> None:
    counted = await ask(client, "/v1/tokenize", messages=MESSAGES)
    answered = await ask(client, "/v1/chat/completions", messages=MESSAGES, max_tokens=1)
    assert counted["count"] == len(counted["tokens"]) == answered["usage"]["prompt_tokens"]
    assert counted["token_strs"] is None


async def test_a_texts_tokens_are_its_prompt(client: httpx.AsyncClient) -> None:
    found = await ask(client, "/tokenize", prompt=STORY, return_token_strs=True)
    assert len(found["token_strs"]) == found["count"] < found["max_model_len"]
    answers = [
        await ask(client, "/v1/completions", prompt=prompt, max_tokens=8, temperature=0)
        for prompt in (STORY, found["tokens"])
    ]
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert texts[0] == texts[1]


async def test_tokens_become_the_text_they_were(client: httpx.AsyncClient) -> None:
    tokens = (await ask(client, "/v1/tokenize", prompt=STORY, add_special_tokens=False))["tokens"]
    assert await ask(client, "/v1/detokenize", tokens=tokens) == {"prompt": STORY}


async def test_a_message_that_goes_on_is_the_end_of_the_prompt(client: httpx.AsyncClient) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The capital of France"}]
    tokens = (await ask(client, "/tokenize", messages=messages, continue_final_message=True))["tokens"]
    prompt = (await ask(client, "/detokenize", tokens=tokens))["prompt"]
    assert prompt.endswith("The capital of France")
    answer = await ask(
        client, "/v1/chat/completions", messages=messages, continue_final_message=True, max_tokens=8,
        temperature=0,
    )  # fmt: skip
    alone = await ask(client, "/v1/completions", prompt=tokens, max_tokens=8, temperature=0)
    assert answer["choices"][0]["message"]["content"] == alone["choices"][0]["text"]


async def test_a_watermark_is_found(client: httpx.AsyncClient) -> None:
    fields = {
        "prompt": STORY, "max_tokens": 300, "temperature": 2, "seed": 7, "ignore_eos": True,
        "repetition_penalty": 2,
    }  # fmt: skip
    scores = []
    for watermark in (True, False):
        made = await ask(client, "/v1/completions", **fields, watermark=watermark)
        scores.append(await ask(client, "/v1/watermark/detect", text=made["choices"][0]["text"]))
    assert list(scores[0]) == ["z_score", "green_fraction", "num_tokens", "detected"]
    assert scores[0]["detected"]
    assert not scores[1]["detected"]


async def test_tokens_outside_the_vocabulary_are_refused_by_name(client: httpx.AsyncClient) -> None:
    answer = await client.post("/detokenize", json={"model": conftest.MODEL, "tokens": [2**31 - 1]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
