"""The bytes of answers: the worked examples, the grammar of streams, what options add to them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from serve_app.types import FinishReason
from tests.conformance import conftest
from tests.conformance.openai_bounds import ENDS
from tests.conformance.ovms.asks import PATH, VARIED, answer, ask
from tests.support.fakes_backend import PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import chat_body, events, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

TAIL = rb'],"created":\d+,"model":"%b","object":"chat\.completion\.chunk","id":"chatcmpl-[0-9a-f]+"'
STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'


def grammar(model: str, *, usage: bool = False) -> re.Pattern[bytes]:
    """A whole stream of one choice."""
    tail = TAIL % re.escape(model).encode() + (rb',"usage":null' if usage else b"") + rb"\}\n\n"
    head = rb'data: \{"choices":\[\{"finish_reason":%b,"index":0,"logprobs":null,"delta":'
    first = head % b"null" + rb'\{"role":"assistant","content":' + STRING + rb"\}\}" + tail
    later = head % b"null" + rb'\{"content":' + STRING + rb"\}\}" + tail
    last = head % b'"(?:stop|length)"' + rb"\{\}\}" + tail
    total = (
        rb'data: \{"choices":\[' + TAIL % re.escape(model).encode()
        + rb',"usage":\{"prompt_tokens":\d+,"completion_tokens":\d+,"total_tokens":\d+\}\}\n\n'
    ) if usage else b""  # fmt: skip
    return re.compile(b"(?:%b(?:%b)*)?%b%bdata: \\[DONE\\]\n\n" % (first, later, last, total))


async def test_the_worked_example_of_a_stream_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=("Hi", " there"))) as g:
        found = await g.post(PATH, chat_body(stream=True, max_tokens=2))
    assert found.headers["content-type"] == "text/event-stream"
    assert found.headers["cache-control"] == "no-cache"
    assert found.headers["x-accel-buffering"] == "no"
    match = re.search(rb'"created":(\d+),.*"id":"(chatcmpl-[0-9a-f]{32})"', found.content)
    assert match is not None
    created, id = (group.decode() for group in match.groups())
    tail = f'],"created":{created},"model":"demo","object":"chat.completion.chunk","id":"{id}"}}\n\n'
    head = 'data: {"choices":[{"finish_reason":%s,"index":0,"logprobs":null,"delta":%s}'
    expected = (
        head % ("null", '{"role":"assistant","content":"Hi"}') + tail
        + head % ("null", '{"content":" there"}') + tail
        + head % ('"length"', "{}") + tail
        + "data: [DONE]\n\n"
    )  # fmt: skip
    assert found.content == expected.encode()


async def test_the_worked_example_of_a_whole_answer() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = await g.post(PATH, chat_body(best_of=3, n=2, max_tokens=4, length_penalty=1.0))
        assert g.backend.last.beam is not None
    assert found.headers["content-type"] == "application/json"
    body = found.json()
    assert list(body) == ["choices", "created", "model", "object", "id", "usage", "system_fingerprint"]
    assert (body["object"], body["model"], type(body["created"])) == ("chat.completion", "demo", int)
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", body["id"])
    assert re.fullmatch("fp_[0-9a-f]+", body["system_fingerprint"])
    total = 2 * len(WORDS)
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": total,
        "total_tokens": PROMPT_TOKENS + total,
    }
    for index, choice in enumerate(body["choices"]):
        assert list(choice) == ["finish_reason", "index", "logprobs", "message"]
        assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("stop", index, None)
        assert list(choice["message"]) == ["content", "role"]
        assert choice["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"] == "".join(WORDS)
    assert "Grüße".encode() in found.content  # not escaped


@module_loop
@pytest.mark.parametrize("usage", [False, True], ids=["plain", "include_usage"])
async def test_a_stream_keeps_to_the_grammar(client: httpx.AsyncClient, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    found = await ask(client, max_tokens=12, stream=True, **options)
    assert found.headers["content-type"] == "text/event-stream"
    assert grammar(conftest.MODEL, usage=usage).fullmatch(found.content), found.text
    assert len({event["id"] for event in events(found.text)}) == 1


@module_loop
async def test_a_whole_answer_has_its_members_in_order(client: httpx.AsyncClient) -> None:
    body = await answer(client)
    assert list(body) == ["choices", "created", "model", "object", "id", "usage", "system_fingerprint"]
    assert list(body["choices"][0]) == ["finish_reason", "index", "logprobs", "message"]
    assert list(body["choices"][0]["message"]) == ["content", "role"]
    assert body["usage"]["total_tokens"] == sum(
        body["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )


@module_loop
async def test_a_stream_has_the_text_of_a_whole_answer(client: httpx.AsyncClient) -> None:
    for seed in (1, 2, 3):
        streamed = events((await ask(client, **VARIED, seed=seed, stream=True)).text)
        (choice,) = (await answer(client, **VARIED, seed=seed))["choices"]
        deltas = [event["choices"][0]["delta"] for event in streamed]
        assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
        assert streamed[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        assert all("role" not in delta for delta in deltas[1:])


@module_loop
async def test_include_usage_counts_as_a_whole_answer_does(client: httpx.AsyncClient) -> None:
    *chunks, last = events((await ask(client, stream=True, stream_options={"include_usage": True})).text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == (await answer(client))["usage"]


@module_loop
async def test_logprobs_are_the_same_streamed_and_whole(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "seed": 4, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await answer(client, **options))["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) <= int(str(VARIED["max_tokens"]))
    assert all(list(entry) == ["token", "logprob", "bytes", "top_logprobs"] for entry in entries)
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    streamed: list[Any] = []
    for event in events((await ask(client, **options, stream=True)).text):
        found = event["choices"][0]["logprobs"]
        streamed += found["content"] if found else []
    assert streamed == entries


@module_loop
async def test_several_samples_stream_with_their_index(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "n": 3, "best_of": 3, "seed": 5}
    streamed = events((await ask(client, **options, stream=True)).text)
    texts = dict.fromkeys(range(3), "")
    ends: dict[int, list[str]] = {index: [] for index in range(3)}
    for event in streamed:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        ends[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert all(len(words) == 1 for words in ends.values())
    whole = (await answer(client, **options))["choices"]
    assert sorted(texts.values()) == sorted(choice["message"]["content"] for choice in whole)


@module_loop
async def test_detokenize_false_sends_ids_and_no_text(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "seed": 6, "detokenize": False}
    (choice,) = (await answer(client, **options))["choices"]
    assert choice["message"]["content"] == ""
    assert choice["token_ids"]
    assert all(type(token) is int for token in choice["token_ids"])
    streamed: list[int] = []
    for event in events((await ask(client, **options, stream=True)).text):
        (chunk,) = event["choices"]
        assert not chunk["delta"].get("content")
        streamed += chunk.get("token_ids", [])
    assert streamed == choice["token_ids"]


@module_loop
async def test_prompt_logprobs_are_listed_by_id_at_the_top(client: httpx.AsyncClient) -> None:
    body = await answer(client, prompt_logprobs=2)
    entries = body["prompt_logprobs"]
    assert len(entries) == body["usage"]["prompt_tokens"]
    assert entries[0] is None
    for entry in entries[1:]:
        assert 2 <= len(entry) <= 3  # the token itself may be one of the likeliest
        ranks = sorted(each["rank"] for each in entry.values())
        assert ranks[:2] == [1, 2]
        assert all(rank > 2 for rank in ranks[2:])
        for key, each in entry.items():
            assert str(int(key)) == key
            assert list(each) == ["logprob", "rank", "decoded_token"]
            assert each["logprob"] <= 0


@pytest.mark.parametrize(("reason", "word"), ENDS)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_words_for_an_end(reason: FinishReason, word: str, stream: bool) -> None:
    async with gateway(FakeBackend(finish=reason)) as g:
        found = await g.post(PATH, chat_body(stream=stream))
    last = events(found.text)[-1] if stream else found.json()
    assert last["choices"][0]["finish_reason"] == word


async def test_no_visible_text_is_one_chunk() -> None:
    async with gateway(FakeBackend(words=("",), finish=FinishReason.EOS)) as g:
        (only,) = events((await g.post(PATH, chat_body(stream=True))).text)
    assert only["choices"] == [{"finish_reason": "stop", "index": 0, "logprobs": None, "delta": {}}]


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/v3/v1/chat/completions",
                                  "/ovms/v3/chat/completions"])  # fmt: skip
async def test_the_routes_of_the_protocol(path: str) -> None:
    async with gateway() as g:
        found = (await g.post(path, chat_body())).json()
    assert next(iter(found)) == "choices"


@pytest.mark.parametrize(
    ("path", "dialect", "first"),
    [
        ("/v1/chat/completions", "ovms", "choices"),
        ("/v3/chat/completions", "openai", "id"),
        ("/ovms/v1/chat/completions", None, "choices"),
    ],
)
async def test_header_and_prefix_select_the_protocol(path: str, dialect: str | None, first: str) -> None:
    headers = {} if dialect is None else {"x-api-dialect": dialect}
    async with gateway() as g:
        found = await g.post(path, chat_body(), headers=headers)
        refused = await g.post(path, chat_body(temperature=9), headers=headers)
    assert next(iter(found.json())) == first
    assert (type(refused.json()["error"]) is str) is (first == "choices")
    assert json.loads(refused.content)["error"]
