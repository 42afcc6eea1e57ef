"""The bytes of chat answers: key order, chunks, finish words, usage, calls, log-probabilities."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason, GenerateRequest, TokenDelta, ToolCallDelta, Usage
from tests.conformance.openai_bounds import ENDS
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import events, gateway
from tests.support.streams import streamed

PATH = "/serving-endpoints/harbor-chat/invocations"
HARBOR = {
    "name": "harbor-chat",
    "served_entities": [{"name": "harbor-8b-v2", "model": "harbor-8b", "version": "2"}],
}
SEVERAL = {**HARBOR, "databricks": {"allow_n_everywhere": True}}
QUESTION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Capital of Peru?"},
    ],
    "max_tokens": 8,
    "temperature": 0,
}
USAGE = Usage(prompt_tokens=24, completion_tokens=2)
TOTALS = {"prompt_tokens": 24, "completion_tokens": 2, "total_tokens": 26}


def harbor(**fields: Any) -> FakeBackend:
    defaults: dict[str, Any] = {"words": ("Lima",), "finish": FinishReason.EOS, "usage": USAGE}
    return FakeBackend(infos=[model_info("harbor-8b", "2")], **{**defaults, **fields})


async def test_the_worked_example_whole() -> None:
    async with gateway(harbor(), endpoints=[HARBOR]) as g:
        answer = await g.post(PATH, QUESTION)
    assert answer.headers["served-model-name"] == "harbor-8b-v2"
    assert answer.headers["content-type"] == "application/json"
    found = re.fullmatch(
        r'{"id":"(chatcmpl-[0-9a-f]+)","object":"chat.completion","created":(\d+),(.*)', answer.text
    )
    assert found is not None, answer.text
    assert found[3] == (
        '"model":"harbor-8b-v2","choices":[{"index":0,"message":{"role":"assistant","content":"Lima"},'
        '"finish_reason":"stop"}],"usage":{"prompt_tokens":24,"completion_tokens":2,"total_tokens":26}}'
    )


async def test_the_worked_example_as_a_stream_byte_by_byte() -> None:
    async with gateway(harbor(), endpoints=[HARBOR]) as g:
        answer = await g.post(PATH, {**QUESTION, "stream": True})
    assert answer.headers["served-model-name"] == "harbor-8b-v2"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    found = re.match(
        r'data: ({"id":"chatcmpl-[0-9a-f]+","object":"chat.completion.chunk","created":\d+,)', answer.text
    )
    assert found is not None, answer.text
    head = f'data: {found[1]}"model":"harbor-8b-v2","choices":[{{"index":0,"delta":'
    assert (
        answer.content
        == (
            f'{head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
            f'{head}{{"content":"Lima"}},"finish_reason":null}}]}}\n\n'
            f'{head}{{}},"finish_reason":"stop"}}],'
            '"usage":{"prompt_tokens":24,"completion_tokens":2,"total_tokens":26}}\n\n'
            "data: [DONE]\n\n"
        ).encode()
    )


async def test_text_is_not_escaped_and_nothing_visible_is_no_chunk() -> None:
    async with gateway(harbor(words=("Bl", "", "ü\n")), endpoints=[HARBOR]) as g:
        answer = await g.post(PATH, {**QUESTION, "stream": True})
    assert 'ü\\n"'.encode() in answer.content
    contents = [chunk["choices"][0]["delta"].get("content") for chunk in events(answer.text)]
    assert contents == ["", "Bl", "ü\n", None]


@pytest.mark.parametrize(("reason", "word"), ENDS)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_words_of_finish_reason(reason: FinishReason, word: str, stream: bool) -> None:
    async with gateway(harbor(finish=reason), endpoints=[HARBOR]) as g:
        answer = await g.post(PATH, {**QUESTION, "stream": stream})
    chunks = events(answer.text) if stream else [answer.json()]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [word]


async def test_stream_options_include_usage_says_where_usage_is() -> None:
    async with gateway(harbor(), endpoints=[HARBOR]) as g:

        async def chunks(**fields: Any) -> list[Any]:
            return events((await g.post(PATH, {**QUESTION, "stream": True, **fields})).text)

        silent: list[dict[str, Any]] = [{}, {"stream_options": None}, {"stream_options": {}}]
        for members in silent:
            *before, last = await chunks(**members)
            assert not any("usage" in chunk for chunk in before)
            assert (last["usage"], last["choices"][0]["finish_reason"]) == (TOTALS, "stop")
        *before, end, last = await chunks(stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in (*before, end))
        assert end["choices"][0]["finish_reason"] == "stop"
        assert (last["choices"], last["usage"]) == ([], TOTALS)
        without = await chunks(stream_options={"include_usage": False})
        assert not any("usage" in chunk for chunk in without)


async def test_cached_tokens_are_told_where_there_are_some() -> None:
    usage = Usage(prompt_tokens=24, completion_tokens=2, cached_tokens=16)
    async with gateway(harbor(usage=usage), endpoints=[HARBOR]) as g:
        answer = (await g.post(PATH, QUESTION)).json()
    assert answer["usage"] == {**TOTALS, "prompt_tokens_details": {"cached_tokens": 16}}


async def test_n_choices_are_told_apart_and_the_last_end_carries_usage() -> None:
    async with gateway(harbor(words=("Li", "ma")), endpoints=[SEVERAL]) as g:
        whole = (await g.post(PATH, {**QUESTION, "n": 3})).json()
        chunks = events((await g.post(PATH, {**QUESTION, "n": 3, "stream": True})).text)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert not any("role" in c["delta"] for c in mine[1:])
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_logprobs_are_there_if_asked_for_and_none_is_lost() -> None:
    asked = {**QUESTION, "logprobs": True, "top_logprobs": 2}
    async with gateway(harbor(words=("a", "", "b", "")), endpoints=[HARBOR]) as g:
        whole = (await g.post(PATH, asked)).json()
        streamed = events((await g.post(PATH, {**asked, "stream": True})).text)
        plain = (await g.post(PATH, {**QUESTION, "logprobs": True})).json()
        assert "logprobs" not in (await g.post(PATH, QUESTION)).json()["choices"][0]
    (choice,) = whole["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"]
    listed = [
        entry
        for chunk in streamed
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert listed == choice["logprobs"]["content"]
    assert [entry["token"] for entry in listed] == ["a", "", "b", ""]
    assert list(listed[0]) == ["token", "logprob", "bytes", "top_logprobs"]
    assert all(list(other) == ["token", "logprob", "bytes"] for e in listed for other in e["top_logprobs"])
    assert all(len(entry["top_logprobs"]) == 2 for entry in listed)
    assert all(e["top_logprobs"] == [] for e in plain["choices"][0]["logprobs"]["content"])


class CallingBackend(FakeBackend):
    """Calls two tools, the first in pieces, and ends; says `words` before."""

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        self.requests.append(request)
        pieces = [
            ToolCallDelta(index=0, id="c1", name="add"),
            ToolCallDelta(index=0, arguments='{"a":'),
            ToolCallDelta(index=0, arguments="1}"),
            ToolCallDelta(index=1, id="c2", name="sub", arguments="{}"),
        ]
        for word in self.words:
            yield [TokenDelta(request_id=request.id, index=0, text=word)]
        yield [TokenDelta(request_id=request.id, index=0, tool_calls=tuple(pieces), reasoning="Hm.")]
        yield [TokenDelta(request_id=request.id, index=0, finish=FinishReason.TOOL_CALLS, usage=USAGE)]


def calling(*words: str) -> CallingBackend:
    return CallingBackend(infos=[model_info("harbor-8b", "2")], words=words)


async def test_tool_calls_have_text_arguments_and_null_content() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
    ]
    for words, content in (((), None), (("Well",), "Well")):
        async with gateway(calling(*words), endpoints=[HARBOR]) as g:
            (choice,) = (await g.post(PATH, QUESTION)).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"] == {
            "role": "assistant",
            "content": content,
            "reasoning_content": "Hm.",
            "tool_calls": calls,
        }


async def test_tool_calls_stream_as_a_head_and_fragments() -> None:
    async with gateway(calling(), endpoints=[HARBOR]) as g:
        chunks = events((await g.post(PATH, {**QUESTION, "stream": True})).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]

    def head(index: int, id: str, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}

    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm."},
        head(0, "c1", "add", ""),
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        head(1, "c2", "sub", "{}"),
        {},
    ]
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["usage"]) == ("tool_calls", TOTALS)


THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
async def test_with_thinking_thoughts_are_parts_of_the_content(kind: str) -> None:
    asked = {**QUESTION, "thinking": {"type": kind}}
    async with gateway(calling("Well", "!"), endpoints=[HARBOR]) as g:
        (choice,) = (await g.post(PATH, asked)).json()["choices"]
        chunks = events((await g.post(PATH, {**asked, "stream": True})).text)
    message = choice["message"]
    assert message["content"] == [THOUGHT, {"type": "text", "text": "Well!"}]
    assert list(message) == ["role", "content", "tool_calls"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    contents = [each["content"] for each in deltas if "content" in each]
    assert [each for each in contents if type(each) is list] == [[THOUGHT]]
    assert "".join(each for each in contents if type(each) is str) == "Well!"
    assert not any("reasoning_content" in each for each in deltas)


async def test_with_thinking_disabled_content_is_text() -> None:
    async with gateway(calling("Well"), endpoints=[HARBOR]) as g:
        (choice,) = (await g.post(PATH, {**QUESTION, "thinking": {"type": "disabled"}})).json()["choices"]
    assert choice["message"]["content"] == "Well"


async def test_a_failure_after_the_first_byte_is_an_event_with_error_too() -> None:
    backend = harbor(words=("a", "b"), fail_after=1, failure=GenerationFailed("the engine failed"))
    async with gateway(backend, endpoints=[HARBOR]) as g:
        answer = await g.post(PATH, {**QUESTION, "stream": True})
    assert answer.status_code == 200
    *_, last = events(answer.text)
    told = {"error_code": "INTERNAL_ERROR", "message": "the engine failed"}
    assert last == {**told, "error": told}
    assert json.dumps(last, separators=(",", ":")) in answer.text
