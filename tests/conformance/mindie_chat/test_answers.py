"""The bytes of answers: key order, chunks, finish words, usage, a failure after the first byte."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason
from tests.support.fakes_backend import PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import CHAT, chat_body, events, gateway

PATH = "/mindie" + CHAT


async def test_a_whole_answer_has_these_keys_in_this_order() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        answer = await g.post(PATH, chat_body())
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["id", "object", "created", "model", "choices", "usage"]
    assert (body["object"], body["model"], type(body["created"])) == ("chat.completion", "demo", int)
    (choice,) = body["choices"]
    assert list(choice) == ["index", "message", "finish_reason"]
    assert choice["message"] == {"role": "assistant", "content": "".join(WORDS)}
    assert choice["finish_reason"] == "eos_token"
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(WORDS),
        "total_tokens": PROMPT_TOKENS + len(WORDS),
    }
    assert "Grüße".encode() in answer.content  # not escaped


async def test_a_stream_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=("Bl", "", "ü"))) as g:
        answer = await g.post(PATH, chat_body(stream=True))
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    found = re.match(
        rb'data: {"id":"([0-9a-f]{32})","object":"chat.completion.chunk","created":(\d+),', answer.content
    )
    assert found is not None, answer.text
    head = (
        f'data: {{"id":"{found[1].decode()}","object":"chat.completion.chunk","created":{found[2].decode()},'
    )
    head += '"model":"demo","choices":[{"index":0,"delta":'
    text = '{"role":"assistant","content":"%s"},"finish_reason":null}]}\n\n'
    expected = (
        head
        + text % "Bl"
        + head
        + text % "ü"
        + head
        + '{},"finish_reason":"length"}]}\n\n'
        + "data: [DONE]\n\n"
    )
    assert answer.content == expected.encode()


async def test_no_visible_text_is_one_chunk() -> None:
    async with gateway(FakeBackend(words=("",), finish=FinishReason.EOS)) as g:
        answer = await g.post(PATH, chat_body(stream=True))
    (only,) = events(answer.text)
    assert only["choices"] == [{"index": 0, "delta": {}, "finish_reason": "eos_token"}]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.EOS, "eos_token"),
        (FinishReason.STOP, "stop_sequence"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
        (FinishReason.ABORT, "stop_sequence"),
        (FinishReason.TOOL_CALLS, "tool_calls"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_words_for_an_end(reason: FinishReason, word: str, stream: bool) -> None:
    async with gateway(FakeBackend(finish=reason)) as g:
        answer = await g.post(PATH, chat_body(stream=stream))
    last = events(answer.text)[-1] if stream else answer.json()
    assert last["choices"][0]["finish_reason"] == word


@pytest.mark.parametrize("wanted", [True, False, None])
async def test_usage_comes_with_the_last_chunk_if_asked_for(wanted: bool | None) -> None:
    async with gateway() as g:
        answer = await g.post(PATH, chat_body(stream=True, n=2, stream_options={"include_usage": wanted}))
    chunks = events(answer.text)
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert ("usage" in chunks[-1]) is bool(wanted)
    if wanted:
        assert list(chunks[-1]) == ["id", "object", "created", "model", "choices", "usage"]
        assert chunks[-1]["usage"]["completion_tokens"] == 2 * len(WORDS)


async def test_choices_are_told_apart() -> None:
    async with gateway() as g:
        whole = (await g.post(PATH, chat_body(n=3))).json()
        streamed = events((await g.post(PATH, chat_body(n=3, stream=True))).text)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine][-1] == "length"


async def test_log_probabilities_are_there_if_asked_for_and_none_is_lost() -> None:
    async with gateway(FakeBackend(words=("a", "", "b", ""))) as g:
        whole = (await g.post(PATH, chat_body(logprobs=True, top_logprobs=2))).json()
        streamed = events((await g.post(PATH, chat_body(logprobs=True, top_logprobs=2, stream=True))).text)
    (choice,) = whole["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"]
    listed = [entry for chunk in streamed for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert listed == choice["logprobs"]["content"]
    assert [entry["token"] for entry in listed] == ["a", "", "b", ""]
    assert all(len(entry["top_logprobs"]) == 2 for entry in listed)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_failure_after_the_first_byte_is_told_and_closed(n: int) -> None:
    backend = FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))
    async with gateway(backend) as g:
        answer = await g.post(PATH, chat_body(stream=True, n=n))
        assert answer.status_code == 200
        parts = answer.text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
        assert chunks[-n - 1] == {"error": "the engine failed", "error_type": "Incomplete Generation"}
        assert [chunk["choices"] for chunk in chunks[-n:]] == [
            [{"index": i, "delta": {}, "finish_reason": "stop_sequence"}] for i in range(n)
        ]
        await g.check()


@pytest.mark.parametrize(
    ("path", "headers", "config"),
    [
        (CHAT, {}, {}),
        (CHAT, {}, {"v1_dialect": "mindie"}),
        (CHAT, {"x-api-dialect": "mindie"}, {}),
        ("/openai" + CHAT, {}, {"v1_dialect": "mindie"}),
        (PATH, {"x-api-dialect": "openai"}, {}),
    ],
)
async def test_header_prefix_and_setting_select_the_protocol(
    path: str, headers: dict[str, str], config: dict[str, Any]
) -> None:
    forced = headers.get("x-api-dialect") or ("openai" if path.startswith("/openai") else None)
    mindie = (forced or config.get("v1_dialect")) == "mindie"
    async with gateway(**config) as g:
        answer = await g.post(path, chat_body(), headers=headers)
        refused = await g.post(path, chat_body(temperature=9), headers=headers)
    assert answer.status_code == 200
    assert ("system_fingerprint" in answer.json()) is not mindie
    assert refused.status_code == (422 if mindie else 400)
    assert (type(refused.json()["error"]) is str) is mindie
