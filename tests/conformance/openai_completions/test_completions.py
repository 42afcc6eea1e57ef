"""POST /v1/completions of OpenAI: the rules of both routes, and those of raw prompts alone."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.openai_bounds import VARIED
from tests.conformance.openai_errors import error_of
from tests.conformance.openai_rules import Route, SharedRules, text_of
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import COMPLETIONS, completion_body, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

ROUTE = Route(COMPLETIONS, {"prompt": "The sea is"})

BOUNDS: Bounds = {
    "prompt": (
        ["x", [1, 2], [1.0], ["a", "b"], [[1], [2, 3]], pytest.param(["x"] * 128, marks=pytest.mark.full)],
        [
            None,
            [],
            "",
            [""],
            ["a", 5],
            ["a", [1]],
            [[1], "a"],
            [[]],
            [["a"]],
            [None],
            {},
            5,
            True,
            [-1],
            [1.5],
            [True],
            [2**31],
            [10**30],
            ["x"] * 129,
        ],
    ),
    "max_tokens": ([1, 3.0, None], [0]),
    "echo": ([True, False, None], []),
    "suffix": (["", None], [5, ["x"]]),
}

TOGETHER: dict[str, tuple[dict[str, Any], str | None]] = {
    "max_tokens=0-with-echo": ({"max_tokens": 0, "echo": True}, None),
    "max_tokens=0-without-echo": ({"max_tokens": 0, "echo": False}, "max_tokens"),
    "suffix-of-token-ids": ({"prompt": [1, 2], "suffix": "x"}, "suffix"),
}


class TestShared(SharedRules):
    """The rules of both routes."""

    route = ROUTE


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    await ROUTE.accepts(client, field, value)


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    await ROUTE.refuses(client, field, value)


@module_loop
@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    await ROUTE.judges(client, fields, complaint)


@module_loop
@pytest.mark.own_server  # the suite's model has no tokens for it
async def test_a_suffix_needs_a_model_that_fills_in_the_middle(client: httpx.AsyncClient) -> None:
    found = await ROUTE.ask(client, suffix="blue")
    assert found.status_code == 400
    assert error_of(found)["code"] == "unsupported_parameter"


@module_loop
async def test_max_tokens_is_sixteen_by_default(client: httpx.AsyncClient) -> None:
    found = await ROUTE.answer(client, max_tokens=None, ignore_eos=True)
    assert found["usage"]["completion_tokens"] == 16


@module_loop
async def test_echo_is_off_and_puts_the_prompt_first(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "max_tokens": 4}
    (plain,) = await ROUTE.texts(client, **options)
    assert await ROUTE.texts(client, **options, echo=False) == [plain]
    assert await ROUTE.texts(client, **options, echo=True) == ["The sea is" + plain]
    streamed = await ROUTE.streamed(client, **options, echo=True)
    assert "".join(text_of(event["choices"][0]) for event in streamed) == "The sea is" + plain
    assert await ROUTE.texts(client, echo=True, max_tokens=0) == ["The sea is"]


@module_loop
async def test_c23_the_index_counts_prompts_and_choices(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "n": 2, "max_tokens": 4}
    prompts = ["The sea is", "My name is", "1, 2,"]
    together = (await ROUTE.answer(client, **options, prompt=prompts))["choices"]
    assert [choice["index"] for choice in together] == list(range(6))
    alone = [await ROUTE.texts(client, **options, prompt=prompt) for prompt in prompts]
    assert [text_of(choice) for choice in together] == [text for texts in alone for text in texts]
    streamed = await ROUTE.streamed(client, **options, prompt=prompts)
    assert {event["choices"][0]["index"] for event in streamed} == set(range(6))


@module_loop
async def test_c22_token_ids_are_a_prompt_as_text_is(client: httpx.AsyncClient) -> None:
    found = await ROUTE.answer(client, prompt=[5, 6, 7], echo=True, logprobs=1, max_tokens=3)
    assert found["usage"]["prompt_tokens"] == 3
    (choice,) = found["choices"]
    lists = choice["logprobs"]
    assert list(lists) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert lists["token_logprobs"][0] is None
    assert len({len(each) for each in lists.values()}) == 1
    assert len(lists["tokens"]) == 3 + found["usage"]["completion_tokens"]
    assert lists["text_offset"] == sorted(lists["text_offset"])


@module_loop
async def test_logprobs_are_the_same_streamed_and_whole(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "logprobs": 2}
    (choice,) = (await ROUTE.answer(client, **options))["choices"]
    parts = [event["choices"][0]["logprobs"] for event in await ROUTE.streamed(client, **options)]
    for name, values in choice["logprobs"].items():
        assert [value for part in parts if part for value in part[name]] == values


@module_loop
async def test_return_tokens_as_token_ids_names_tokens_by_id(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True}
    (choice,) = (await ROUTE.answer(client, **options))["choices"]
    lists = choice["logprobs"]
    assert lists["tokens"] == [f"token_id:{each}" for each in choice["token_ids"]]
    assert all(name.startswith("token_id:") for top in lists["top_logprobs"] for name in top)
    parts = [event["choices"][0]["logprobs"] for event in await ROUTE.streamed(client, **options)]
    assert [name for part in parts if part for name in part["tokens"]] == lists["tokens"]


@module_loop
async def test_ids_and_usage_of_several_prompts(client: httpx.AsyncClient) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    found = await ROUTE.answer(client, prompt=prompts, return_token_ids=True)
    assert [choice["prompt_token_ids"] for choice in found["choices"]] == prompts
    options = {"include_usage": True, "continuous_usage_stats": True}
    *_, before, last = await ROUTE.streamed(client, prompt=prompts, stream_options=options)
    assert before["usage"]["prompt_tokens"] == last["usage"]["prompt_tokens"] == 5
    assert before["usage"]["completion_tokens"] == last["usage"]["completion_tokens"]


async def test_a_stream_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=("Bl", "", "ü"))) as g:
        found = await g.post(COMPLETIONS, completion_body(stream=True))
    assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
    head = re.match(
        r'data: \{"id":"cmpl-[0-9a-f]{32}","object":"text_completion","created":\d+,"model":"demo",'
        r'"system_fingerprint":"fp_[0-9a-f]{10}","choices":\[\{"index":0,',
        found.text,
    )
    assert head is not None, found.text
    ends = [("Bl", "null"), ("ü", '"length"')]
    chunks = [
        f'{head[0]}"text":"{text}","logprobs":null,"finish_reason":{end}}}]}}\n\n' for text, end in ends
    ]
    assert found.content == ("".join(chunks) + "data: [DONE]\n\n").encode()


@module_loop
async def test_a_stream_keeps_to_the_grammar(client: httpx.AsyncClient) -> None:
    found = await ROUTE.ask(client, max_tokens=12, stream=True)
    head = (
        rb'data: \{"id":"cmpl-[0-9a-f]+","object":"text_completion","created":\d+,"model":"%b",'
        rb'"system_fingerprint":"fp_[0-9a-f]+","choices":\[\{"index":0,"text":"(?:[^"\\\x00-\x1f]|\\.)*",'
    ) % re.escape(conftest.MODEL).encode()
    text = head + rb'"logprobs":null,"finish_reason":null\}\]\}\n\n'
    last = head + rb'"logprobs":null,"finish_reason":"(?:stop|length)"\}\]\}\n\n'
    whole = b"(?:" + text + b")*" + last + rb"data: \[DONE\]\n\n"
    assert re.fullmatch(whole, found.content), found.text
