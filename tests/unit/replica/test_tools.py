"""Tool calls and thoughts of a real model, from its tokens to deltas."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serve_app.errors import InvalidField, UnsupportedField
from serve_app.models.catalogue import demo_folder
from serve_app.replica.server import ModelServer
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    Prompt,
    SamplingParams,
    ToolChoice,
    ToolMode,
)
from tests.support.replica import model_server
from tests.support.sink import Sink

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ids = itertools.count()
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


def asked(*messages: dict[str, Any], tools: tuple[Any, ...] = (WEATHER,), **changes: Any) -> GenerateRequest:
    base = GenerateRequest(
        id=f"t{next(_ids)}",
        model="demo-chat",
        prompt=Prompt(messages=messages or (QUESTION,), tools=tools),
        sampling=SamplingParams(temperature=0.0, max_tokens=60),
    )
    return replace(base, **changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServer]:
    async for found in started():
        yield found


async def started(**settings: Any) -> AsyncIterator[ModelServer]:
    engine = {"max_model_len": 512, "num_blocks": 80}
    async with model_server(engine, name="demo-chat", **settings) as found:
        yield found


async def run(server: ModelServer, request: GenerateRequest) -> Sink:
    sink = Sink()
    await server.generate(request, sink)
    return sink


async def test_a_call_is_streamed_and_no_part_of_the_text(server: ModelServer) -> None:
    sink = await run(server, asked())
    assert sink.text() == ""
    ((name, arguments),) = sink.calls
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Oslo"})
    assert sink.deltas[-1].finish is FinishReason.TOOL_CALLS
    first, *rest = sink.pieces
    assert first.id is not None
    assert first.id.startswith("call_")
    assert len(rest) > 1, "the arguments come in pieces"
    assert all(piece.id is piece.name is None for piece in rest)
    whole = await run(server, asked(stream=False))
    assert len(whole.deltas) == 1
    assert (whole.calls, whole.text(), whole.deltas[0].finish) == (sink.calls, "", sink.deltas[-1].finish)
    assert whole.deltas[0].usage.completion_tokens == sink.deltas[-1].usage.completion_tokens


async def test_what_the_tool_said_comes_back_in_words(server: ModelServer) -> None:
    ((name, arguments),) = (await run(server, asked())).calls
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.loads(arguments)}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": '{"temperature": 3, "condition": "snowy"}'}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    sink = await run(server, asked(QUESTION, turn, answer))
    assert "3" in sink.text()
    assert (sink.calls, sink.deltas[-1].finish) == ([], FinishReason.EOS)


async def test_tools_that_must_not_be_called_are_not_shown(server: ModelServer) -> None:
    none = await run(server, asked(tool_choice=ToolChoice(mode=ToolMode.NONE)))
    bare = await run(server, asked(tools=()))
    assert (none.text(), none.calls) == (bare.text(), [])
    assert none.deltas[-1].usage.prompt_tokens == bare.deltas[-1].usage.prompt_tokens
    assert none.text()


async def test_a_single_call_ends_the_sequence_at_its_brace(server: ModelServer) -> None:
    free = await run(server, asked())
    single = await run(server, asked(tool_choice=ToolChoice(parallel=False)))
    assert single.calls == free.calls
    assert single.deltas[-1].finish is FinishReason.TOOL_CALLS
    assert single.deltas[-1].usage.completion_tokens < free.deltas[-1].usage.completion_tokens
    async with asyncio.timeout(60):
        while server.stats().running:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_single_call_ends_at_its_brace_where_a_draft_goes_on(stream: bool) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    loose = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    oslo = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": oslo}],
    }
    answer = {"role": "tool", "tool_call_id": "c1", "content": "{}"}
    again = asked(QUESTION, turn, answer, QUESTION, tools=(loose,), logprobs=0, stream=stream)
    again = replace(again, tool_choice=ToolChoice(parallel=False))
    told = []
    for most in (0, 16):
        engine = {"max_model_len": 512, "num_blocks": 80, "ngram_draft": most}
        async with model_server(engine, name="demo-chat") as server:
            sink = await run(server, replace(again, id=f"most-{most}"))
            last = sink.deltas[-1]
            ids = [token for delta in sink.deltas for token in delta.token_ids]
            logprobs = [one.token_id for delta in sink.deltas for one in delta.logprobs or ()]
            told.append((sink.calls, sink.text(), ids, last.finish, last.usage.completion_tokens))
            assert logprobs == ids
            assert server.stats().accepted_tokens > 0 or not most
    assert told[0] == told[1]
    assert told[0][3] is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    "choice",
    [
        ToolChoice(),
        ToolChoice(parallel=False),
        ToolChoice(mode=ToolMode.NAMED, name="get_weather"),
    ],
    ids=["auto", "single", "named"],
)
async def test_a_call_that_is_cut_short_keeps_what_came(server: ModelServer, choice: ToolChoice) -> None:
    free = await run(server, asked(tool_choice=choice))
    ((_, arguments),) = free.calls
    for limit in range(1, 12):
        sampling = SamplingParams(temperature=0.0, max_tokens=limit)
        cut = await run(server, asked(sampling=sampling, tool_choice=choice))
        assert cut.text() == ""
        assert all(arguments.startswith(told) for _, told in cut.calls)
        assert cut.deltas[-1].finish is FinishReason.LENGTH
        whole = await run(server, asked(sampling=sampling, tool_choice=choice, stream=False))
        assert (whole.text(), whole.calls) in (("", []), ("", free.calls))


async def test_a_stop_token_within_a_call_leaves_nothing_of_it(server: ModelServer) -> None:
    free = await run(server, asked())
    within = free.ids()[free.ids().index(free.ids()[-1]) - 4]
    sampling = SamplingParams(temperature=0.0, max_tokens=60, stop_token_ids=(within,))
    whole = await run(server, asked(sampling=sampling, stream=False))
    assert (whole.text(), whole.calls, whole.finish()) == ("", [], FinishReason.STOP)


async def test_every_choice_has_calls_of_its_own(server: ModelServer) -> None:
    sink = await run(server, asked(n=2))
    both = [[p for delta in sink.deltas if delta.index == i for p in delta.tool_calls] for i in range(2)]
    assert [p.arguments for p in both[0]] == [p.arguments for p in both[1]]
    assert both[0][0].id != both[1][0].id
    best = await run(server, asked(n=1, best_of=3, stream=False))
    assert best.calls[0][0] == "get_weather"


CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_clock",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["hour"],
        },
    },
}
HELLO = {"role": "user", "content": "Hello!"}
REQUIRED = ToolChoice(mode=ToolMode.REQUIRED)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_a_forced_call_is_one_of_the_tools(server: ModelServer, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=200)
    free = await run(server, asked(HELLO, tools=(CLOCK, WEATHER)))
    assert free.calls == []
    forced = await run(server, asked(HELLO, tools=(CLOCK, WEATHER), tool_choice=REQUIRED, sampling=sampling))
    assert forced.text() == ""
    assert forced.calls
    assert forced.deltas[-1].finish in (FinishReason.TOOL_CALLS, FinishReason.LENGTH)
    for name, arguments in forced.calls:
        assert name in ("get_weather", "set_clock")
        if forced.deltas[-1].finish is FinishReason.TOOL_CALLS:
            assert set(json.loads(arguments)) == ({"city"} if name == "get_weather" else {"hour"})


async def test_a_named_tool_is_called_once(server: ModelServer) -> None:
    named = ToolChoice(mode=ToolMode.NAMED, name="set_clock")
    whole = await run(server, asked(tools=(CLOCK, WEATHER), tool_choice=named, stream=False))
    ((name, arguments),) = whole.calls
    assert name == "set_clock"
    assert 0 <= json.loads(arguments)["hour"] <= 23
    assert (whole.text(), whole.deltas[-1].finish) == ("", FinishReason.TOOL_CALLS)
    streamed = await run(server, asked(tools=(CLOCK, WEATHER), tool_choice=named))
    assert streamed.calls == whole.calls
    assert streamed.deltas[-1].usage.completion_tokens == whole.deltas[-1].usage.completion_tokens


async def test_a_strict_tool_is_called_right_or_not_at_all(server: ModelServer) -> None:
    function: dict[str, Any] = {**CLOCK["function"], "name": "get_weather", "strict": True}
    strict = await run(server, asked(tools=({"type": "function", "function": function},)))
    for name, arguments in strict.calls:
        assert name == "get_weather"
        assert set(json.loads(arguments)) == {"hour"}
    talk = await run(server, asked(HELLO))
    assert talk.calls == []
    assert talk.text()


async def test_an_answer_in_a_format_may_be_a_call_first(server: ModelServer) -> None:
    schema = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
    grammar = Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(schema))
    call = await run(server, asked(grammar=grammar))
    assert [name for name, _ in call.calls] == ["get_weather"]
    question = {
        "role": "user",
        "content": "What is the capital of Spain? Answer in JSON with the key capital.",
    }
    told = await run(server, asked(question, grammar=grammar, tool_choice=ToolChoice(mode=ToolMode.NONE)))
    assert (told.text(), told.calls) == ('{"capital": "Madrid"}', [])


async def test_a_schema_that_cannot_be_followed_is_an_error_of_the_tools(server: ModelServer) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "wrong"}}}}
    tool = {"type": "function", "function": function}
    with pytest.raises(InvalidField) as caught:
        await run(server, asked(tools=(tool,), tool_choice=REQUIRED))
    assert caught.value.param == "tools"
    assert caught.value.message.startswith('tools: tool "f": ')
    assert "$.properties.a: " in caught.value.message


async def test_the_tool_that_cannot_be_followed_is_named_with_the_place(server: ModelServer) -> None:
    nothing = {"type": "string", "minLength": 3, "maxLength": 2}
    parameters = {"type": "object", "properties": {"to": nothing}, "required": ["to"]}
    broken = {"type": "function", "function": {"name": "send", "parameters": parameters}}
    with pytest.raises(InvalidField, match=r'^tools: tool "send": \$\.properties\.to: '):
        await run(server, asked(tools=(WEATHER, broken), tool_choice=REQUIRED))


async def test_without_a_format_a_call_is_text_and_cannot_be_forced() -> None:
    async for server in started(tool_format="none"):
        sink = await run(server, asked())
        assert sink.text().startswith("<tool_call>")
        assert (sink.calls, sink.deltas[-1].finish) == ([], FinishReason.EOS)
        with pytest.raises(UnsupportedField, match="tool_choice"):
            await run(server, asked(tool_choice=REQUIRED))


async def test_thoughts_are_split_off_where_the_template_opens_them(tmp_path: Any) -> None:
    template = tmp_path / "template.jinja"
    # The model knows nothing of thinking: all it says is thought until it closes, which it never does.
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>\n{# </think> #}"
    )
    async for server in started(chat_template=template):
        thought = await run(server, asked(tools=()))
        assert thought.text() == ""
        assert thought.reasoning
        off = await run(server, asked(tools=(), reasoning=False))
        assert off.text().strip() == thought.reasoning.strip()
        stop = thought.reasoning[3:6]
        stopped = await run(server, asked(tools=(), stop=(stop,)))
        assert stopped.reasoning == thought.reasoning[: thought.reasoning.index(stop)]
        assert stopped.deltas[-1].finish is FinishReason.STOP


async def test_thoughts_end_after_as_many_tokens_as_the_request_allows(tmp_path: Path) -> None:
    """Where the markers are tokens of the model: the ones that it knows by other names here."""
    folder, template = tmp_path / "model", tmp_path / "template.jinja"
    shutil.copytree(demo_folder("demo-chat"), folder)
    spelled = (folder / "tokenizer.json").read_text("utf-8")
    for old, new in (("<tools>", "<think>"), ("</tools>", "</think>")):
        spelled = spelled.replace(old, new)
    (folder / "tokenizer.json").write_text(spelled, "utf-8")
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>"
    )
    async for server in started(source=str(folder), chat_template=template):
        # The model knows nothing of thinking, and would say nothing behind it.
        options: Any = {
            "tools": (),
            "sampling": SamplingParams(temperature=0.0, max_tokens=60, min_tokens=12),
        }
        free = await run(server, asked(**options))
        assert (free.text(), bool(free.reasoning)) == ("", True)
        for most in (0, 1, 4):
            limited = await run(server, asked(**options, thinking_tokens=most))
            assert free.reasoning.startswith(limited.reasoning)
            assert limited.deltas[-1].usage.reasoning_tokens == most
            assert limited.text()
            whole = await run(server, asked(**options, thinking_tokens=most, stream=False))
            assert (whole.reasoning, whole.text()) == (limited.reasoning, limited.text())
        plenty = await run(server, asked(**options, thinking_tokens=10_000))
        before_control, _, _ = free.reasoning.partition("</tool_call>")  # no control token is thought
        assert (plenty.reasoning[: len(before_control)], plenty.text()) == (before_control, "")
        # No thoughts are looked for here, so none are limited.
        raw = await run(server, asked(**options, thinking_tokens=1, reasoning=False))
        assert raw.text().strip() == free.reasoning.strip()
