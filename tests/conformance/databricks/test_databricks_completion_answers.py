"""The bytes of completions: echo, suffix, batches, usage, log-probabilities, and what a deadline leaves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serve_app.errors import DeadlineExceeded, GenerationFailed
from serve_app.types import Usage
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import events, gateway

PATH = "/serving-endpoints/base/invocations"
BASE: dict[str, Any] = {
    "name": "base",
    "task": "llm/v1/completions",
    "served_entities": [{"name": "harbor-base", "model": "base"}],
}
SEVERAL = {**BASE, "databricks": {"allow_n_everywhere": True}}
BATCH: dict[str, Any] = {
    "prompt": ["1, 2, 3,", "a, b, c,"],
    "max_tokens": 2,
    "temperature": 0,
    "use_raw_prompt": True,
    "echo": True,
    "suffix": " …",
}


def base(*words: str, **fields: Any) -> FakeBackend:
    usage = Usage(prompt_tokens=6, completion_tokens=2)
    return FakeBackend(infos=[model_info("base")], **{"words": words, "usage": usage, **fields})


async def test_the_worked_example_whole() -> None:
    async with gateway(base(" 4"), endpoints=[BASE]) as g:
        answer = await g.post(PATH, BATCH)
    found = re.fullmatch(r'{"id":"cmpl-[0-9a-f]+","object":"text_completion","created":\d+,(.*)', answer.text)
    assert found is not None, answer.text
    assert answer.headers["served-model-name"] == "harbor-base"
    assert found[1] == (
        '"model":"harbor-base","choices":[{"index":0,"text":"1, 2, 3, 4 …","finish_reason":"length"},'
        '{"index":1,"text":"a, b, c, 4 …","finish_reason":"length"}],'
        '"usage":{"prompt_tokens":12,"completion_tokens":4,"total_tokens":16}}'
    )


async def test_a_stream_byte_by_byte_with_echo_and_suffix_as_events_of_their_own() -> None:
    async with gateway(base(" 4", "", " 5"), endpoints=[BASE]) as g:
        answer = await g.post(PATH, {**BATCH, "prompt": "1,", "stream": True})
    found = re.match(r'data: ({"id":"cmpl-[0-9a-f]+","object":"text_completion","created":\d+,)', answer.text)
    assert found is not None, answer.text
    head = f'data: {found[1]}"model":"harbor-base","choices":[{{"index":0,"text":'
    expected = "".join(f'{head}"{text}","finish_reason":null}}]}}\n\n' for text in ("1,", " 4", " 5", " …"))
    expected += f'{head}"","finish_reason":"length"}}],'
    expected += '"usage":{"prompt_tokens":6,"completion_tokens":2,"total_tokens":8}}\n\ndata: [DONE]\n\n'
    assert answer.content == expected.encode()


async def test_a_streamed_batch_adds_up_and_ends_with_usage_of_all_prompts() -> None:
    async with gateway(base(" 4", " 5"), endpoints=[SEVERAL]) as g:
        whole = (await g.post(PATH, {**BATCH, "n": 2})).json()
        chunks = events((await g.post(PATH, {**BATCH, "n": 2, "stream": True})).text)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]  # prompt_index * n + i
    assert [c["text"][0] for c in whole["choices"]] == ["1", "1", "a", "a"]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        assert (mine[0]["text"], mine[-1]["text"]) == (BATCH["prompt"][choice["index"] // 2], "")
    assert not any("usage" in chunk for chunk in chunks[:-1])
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, "ab"),
        ({"echo": True}, "Once ab"),
        ({"suffix": " end"}, "ab end"),
        ({"echo": True, "suffix": " end"}, "Once ab end"),
        ({"echo": False, "suffix": ""}, "ab"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_echo_and_suffix_go_around_the_text(members: dict[str, Any], text: str, stream: bool) -> None:
    async with gateway(base("a", "b"), endpoints=[BASE]) as g:
        answer = await g.post(PATH, {"prompt": "Once ", "stream": stream, **members})
    chunks = events(answer.text) if stream else [answer.json()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert chunks[-1]["usage"]["completion_tokens"] == 2  # neither echo nor suffix


async def test_stream_options_include_usage_as_in_chat() -> None:
    async with gateway(base("a"), endpoints=[BASE]) as g:
        wanted = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
        *before, last = events((await g.post(PATH, wanted)).text)
    assert all(chunk["usage"] is None for chunk in before)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 8)


async def test_logprobs_have_the_legacy_shape_and_offsets_behind_the_echo() -> None:
    asked = {"prompt": "Once ", "echo": True, "logprobs": 2}
    async with gateway(base("ab", "c"), endpoints=[BASE]) as g:
        (choice,) = (await g.post(PATH, asked)).json()["choices"]
        chunks = events((await g.post(PATH, {**asked, "stream": True})).text)
        assert "logprobs" not in (await g.post(PATH, {"prompt": "x"})).json()["choices"][0]
    assert list(choice) == ["index", "text", "logprobs", "finish_reason"]
    listed = choice["logprobs"]
    assert listed["tokens"] == ["ab", "c"]
    assert listed["text_offset"] == [5, 7]
    assert listed["token_logprobs"] == [-0.5, -0.5]
    assert [len(top) for top in listed["top_logprobs"]] == [2, 2]
    streamed = [part for chunk in chunks if (part := chunk["choices"][0]["logprobs"])]
    assert [offset for part in streamed for offset in part["text_offset"]] == [5, 7]


async def test_a_failure_after_the_first_byte_is_an_event_with_error_too() -> None:
    backend = base("a", "b", fail_after=1, failure=GenerationFailed("the engine failed"))
    async with gateway(backend, endpoints=[BASE]) as g:
        *_, last = events((await g.post(PATH, {"prompt": "x", "stream": True})).text)
    told = {"error_code": "INTERNAL_ERROR", "message": "the engine failed"}
    assert last == {**told, "error": told}


# --- the deadline ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_error_behavior_truncate_answers_what_there_is_at_the_deadline(stream: bool) -> None:
    asked = {"prompt": ["x", "y"], "error_behavior": "truncate", "suffix": "!", "stream": stream}
    async with gateway(base("a", "b", hang_after=1), endpoints=[BASE], request_timeout_s=1.0) as g:
        answer = await g.post(PATH, asked)
        assert answer.status_code == 200, answer.text
        chunks = events(answer.text) if stream else [answer.json()]
        texts = {0: "", 1: ""}
        ends = {}
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] = choice["finish_reason"]
        assert texts == {0: "a!", 1: "a!"}
        assert ends == {0: "length", 1: "length"}
        assert chunks[-1]["usage"] == {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}
        assert g.backend.running == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_error_behavior_truncate_when_the_replica_tells_of_the_deadline(stream: bool) -> None:
    asked = {"prompt": "x", "error_behavior": "truncate", "stream": stream}
    late = base("a", "b", fail_after=1, error_delta=DeadlineExceeded("timeout"))
    async with gateway(late, endpoints=[BASE]) as g:
        answer = await g.post(PATH, asked)
    chunks = events(answer.text) if stream else [answer.json()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("behavior", [None, "error"])
async def test_error_behavior_error_fails_at_the_deadline(behavior: str | None) -> None:
    asked = {"prompt": "x", "error_behavior": behavior}
    backend = base("a", "b", hang_after=0)
    async with gateway(backend, endpoints=[BASE], request_timeout_s=0.5) as g:
        answer = await g.post(PATH, asked)
        assert (answer.status_code, answer.json()["error_code"]) == (504, "DEADLINE_EXCEEDED")
        backend.hang_after = 1
        *_, last = events((await g.post(PATH, {**asked, "stream": True})).text)
        assert last["error_code"] == last["error"]["error_code"] == "DEADLINE_EXCEEDED"


async def test_truncate_has_nothing_to_answer_before_the_first_token() -> None:
    asked = {"prompt": "x", "error_behavior": "truncate"}
    async with gateway(base("a", hang_after=0), endpoints=[BASE], request_timeout_s=0.1) as g:
        assert (await g.post(PATH, asked)).status_code == 504
