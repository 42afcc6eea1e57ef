"""Tools through the unmodified openai package and the demo model: in this process, and served by Ray.

A question leads to a call, the tool's answer to a final text; streamed answers are the whole ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageCustomToolCall,
)
from pydantic import BaseModel

from serve_app.config import EngineConfig, ModelConfig
from tests.support.served import MODEL

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["minutes"],
        },
    },
}
QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather in Oslo?"}
HELLO: dict[str, Any] = {"role": "user", "content": "Hello!"}


class Sdk:
    """Asks whole and streamed, and compares the two."""

    def __init__(self, url: str) -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    def ask(self, *messages: dict[str, Any], **options: Any) -> ChatCompletion:
        """The answer; streamed, it must be the same but for the ids of its calls."""
        wanted: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 80}
        wanted |= options
        whole = self.client.chat.completions.create(**wanted)
        chunks = list(
            self.client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True})
        )
        assert outline(put_together(chunks)) == outline(whole)
        return whole


def put_together(chunks: list[ChatCompletionChunk]) -> ChatCompletion:
    """By the package's own rules."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def outline(answer: ChatCompletion) -> Any:
    """All that must not differ between two answers to one question."""
    choices = []
    for choice in answer.choices:
        message = choice.message
        calls = [
            (call.type, call.function.name, call.function.arguments) for call in message.tool_calls or []
        ]
        legacy = message.function_call and (message.function_call.name, message.function_call.arguments)
        choices.append((message.role, message.content or "", calls, legacy, choice.finish_reason))
    usage = answer.usage
    assert usage is not None
    return choices, usage.prompt_tokens, usage.completion_tokens


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def sdk(request: pytest.FixtureRequest) -> Iterator[Sdk]:
    if request.param == "ray":
        yield from opened(request.getfixturevalue("demo_chat").url)
        return
    from tests.support.local_model import local_model  # not on import: with Ray this process has no torch

    engine = EngineConfig(block_size=16, num_blocks=80, max_model_len=512)
    with local_model(ModelConfig(name=MODEL, dtype="float32", threads=1, engine=engine)) as url:
        yield from opened(url)


def opened(url: str) -> Iterator[Sdk]:
    found = Sdk(url)
    yield found
    found.client.close()


def test_a_call_its_answer_and_the_final_text(sdk: Sdk) -> None:
    (choice,) = sdk.ask(QUESTION, tools=[WEATHER]).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert call.id.startswith("call_")
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 3, "condition": "snowy"}'}
    turn = choice.message.model_dump(exclude_none=True)
    (final,) = sdk.ask(QUESTION, turn, result, tools=[WEATHER]).choices
    assert final.finish_reason == "stop"
    assert "3" in (final.message.content or "")
    assert final.message.tool_calls is None


def test_chunks_are_those_of_openai(sdk: Sdk) -> None:
    stream = sdk.client.chat.completions.create(
        model=MODEL, messages=[QUESTION], tools=[WEATHER], temperature=0, stream=True
    )
    opening, first, *rest, last = [chunk.choices[0] for chunk in stream]
    assert (opening.delta.role, opening.delta.content) == ("assistant", "")
    (begun,) = first.delta.tool_calls or []
    assert (begun.index, begun.type) == (0, "function")
    assert begun.id
    assert begun.function
    assert (begun.function.name, begun.function.arguments) == ("get_weather", "")
    assert len(rest) > 1
    for choice in rest:
        (piece,) = choice.delta.tool_calls or []
        assert (piece.index, piece.id, piece.type) == (0, None, None)
        assert piece.function
        assert piece.function.name is None
        assert piece.function.arguments
        assert choice.finish_reason is None
    assert (last.delta.tool_calls, last.finish_reason) == (None, "tool_calls")


def test_text_is_text_although_tools_are_offered(sdk: Sdk) -> None:
    (choice,) = sdk.ask(HELLO, tools=[WEATHER]).choices
    assert choice.message.content
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    none = sdk.ask(QUESTION, tools=[WEATHER], tool_choice="none")
    assert outline(none) == outline(sdk.ask(QUESTION))


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_made_although_nobody_asked(sdk: Sdk, parallel: bool) -> None:
    (choice,) = sdk.ask(
        HELLO, tools=[TIMER, WEATHER], tool_choice="required", parallel_tool_calls=parallel, max_tokens=200
    ).choices
    calls = choice.message.tool_calls or []
    assert calls
    assert parallel or len(calls) == 1
    assert choice.message.content is None
    for call in calls:
        assert call.type == "function"
        assert call.function.name in ("set_timer", "get_weather")
        assert set(json.loads(call.function.arguments)) <= {"minutes", "city"}


def test_a_named_tool_is_called_and_no_other(sdk: Sdk) -> None:
    named = {"type": "function", "function": {"name": "set_timer"}}
    (choice,) = sdk.ask(QUESTION, tools=[WEATHER, TIMER], tool_choice=named, n=1).choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "set_timer"
    assert 1 <= json.loads(call.function.arguments)["minutes"] <= 99
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("syntax", "definition"), [("regex", "[a-z]{3,9}"), ("lark", "start: WORD\nWORD: /[a-z]/~3..9")]
)
def test_a_custom_tool_is_called_with_a_text_and_answered(sdk: Sdk, syntax: str, definition: str) -> None:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool: Any = {"type": "custom", "custom": {"name": "note", "description": "Note it.", "format": form}}
    wanted: dict[str, Any] = {"model": MODEL, "tools": [tool], "temperature": 0, "max_tokens": 60}
    forced = {**wanted, "messages": [HELLO], "tool_choice": {"type": "custom", "custom": {"name": "note"}}}
    message = sdk.client.chat.completions.create(**forced).choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert re.fullmatch("[a-z]{3,9}", call.custom.input)
    chunks = sdk.client.chat.completions.create(**forced, stream=True)
    pieces = [piece.model_dump() for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert pieces[0]["custom"]["name"] == "note"
    assert "".join(piece["custom"]["input"] for piece in pieces) == call.custom.input
    result = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
    turns = [HELLO, message.model_dump(exclude_none=True), result]
    assert sdk.client.chat.completions.create(**wanted, messages=turns).choices[0].message.content


def test_functions_and_their_answers(sdk: Sdk) -> None:
    (choice,) = sdk.ask(QUESTION, functions=[WEATHER["function"]]).choices
    assert choice.finish_reason == "function_call"
    called = choice.message.function_call
    assert called
    assert (called.name, json.loads(called.arguments)) == ("get_weather", {"city": "Oslo"})
    turn = choice.message.model_dump(exclude_none=True)
    result = {
        "role": "function",
        "name": "get_weather",
        "content": '{"temperature": 3, "condition": "snowy"}',
    }
    (final,) = sdk.ask(QUESTION, turn, result, functions=[WEATHER["function"]]).choices
    assert "3" in (final.message.content or "")


class GetWeather(BaseModel):
    """Get the weather in a city."""

    city: str


def test_the_packages_own_tools_are_parsed_into_their_models(sdk: Sdk) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    answer = sdk.client.chat.completions.parse(
        model=MODEL, messages=[QUESTION], tools=[tool], temperature=0, max_tokens=80
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Oslo")


def test_every_choice_has_its_own_ids(sdk: Sdk) -> None:
    answer = sdk.ask(QUESTION, tools=[WEATHER], n=3)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"functions": [{"name": "a b"}]}, "functions.0.name"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": {"type": 1}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {
                "functions": [{"name": "f", "parameters": {"properties": {"a": {"type": 1}}}}],
                "function_call": {"name": "f"},
            },
            "functions",
        ),
    ],
)
def test_bad_tools_are_bad_requests_that_name_the_field(
    sdk: Sdk, options: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.client.chat.completions.create(model=MODEL, messages=[HELLO], stream=stream, **options)
        assert (caught.value.param or "").startswith(param)
        assert param in caught.value.message


@pytest.mark.parametrize("base", ["/v1", "/mindie/v1", "/v3", "/serving-endpoints"])
def test_the_loop_of_a_client_goes_on_in_every_protocol(sdk: Sdk, base: str) -> None:
    """The message that asks for a call is sent back as it came: whole, with nulls, and put together."""
    client = sdk.client.with_options(base_url=str(sdk.client.base_url).replace("/v1/", base))
    wanted: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "max_tokens": 80}
    greedy = {"top_k": 1}  # a temperature of 0 is an error of MindIE's
    (whole,) = client.chat.completions.create(messages=[QUESTION], extra_body=greedy, **wanted).choices
    chunks = client.chat.completions.create(messages=[QUESTION], extra_body=greedy, stream=True, **wanted)
    (streamed,) = put_together(list(chunks)).choices
    pieces = {**streamed.message.to_dict(), "role": "assistant"}  # MindIE says it in every chunk
    for turn in (whole.message.to_dict(), whole.message.model_dump(), pieces):
        calls: Any = turn["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["get_weather"]
        answer = '{"temperature": 3, "condition": "snowy"}'
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": answer}
        (final,) = client.chat.completions.create(
            messages=[QUESTION, turn, result], extra_body=greedy, **wanted
        ).choices
        assert "3" in (final.message.content or "")
