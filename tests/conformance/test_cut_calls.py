"""Calls of tools that are cut, by length or by a stop string: what a client can use, in every protocol.

The markup of a call is never text, no answer claims to end with a call whose arguments are broken, and a
whole answer has whole calls alone. Stop strings are looked for in what a client reads as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from tests.conformance import conftest

pytestmark = pytest.mark.asyncio(loop_scope="module")

Fields = dict[str, Any]

QUESTION: Final = "What is the weather in Oslo?"
MESSAGES: Final[list[Fields]] = [{"role": "user", "content": QUESTION}]
NAME: Final = "get_weather"
PARAMETERS: Final[Fields] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Final[Fields] = {
    "name": NAME,
    "description": "Get the weather in a city.",
    "parameters": PARAMETERS,
}
LENGTHS: Final = range(1, 18)  # the whole call takes about as many tokens
SURELY_CUT: Final = 12


@dataclass(frozen=True)
class Told:
    """What a client got: text, the arguments of each call, and why the answer ended."""

    text: str
    calls: list[str]
    end: str

    @property
    def broken(self) -> list[str]:
        return [call for call in self.calls if not _is_json(call)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _objects(raw: str) -> list[Any]:
    lines = [line.removeprefix("data:").strip() for line in raw.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _chat(raw: str, stream: bool) -> Told:
    if not stream:
        choice = json.loads(raw)["choices"][0]
        calls = [call["function"]["arguments"] for call in choice["message"].get("tool_calls") or ()]
        return Told(choice["message"]["content"] or "", calls, choice["finish_reason"])
    choices = [choice for each in _objects(raw) for choice in each["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    found: dict[int, str] = {}
    for place, call in enumerate(c for choice in choices for c in choice["delta"].get("tool_calls") or ()):
        index = call.get("index", place)
        found[index] = found.get(index, "") + (call["function"].get("arguments") or "")
    ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return Told(text, [*found.values()], ends[-1])


def _message(raw: str, stream: bool) -> Told:
    if not stream:
        message = json.loads(raw)
        text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        calls = [json.dumps(block["input"]) for block in message["content"] if block["type"] == "tool_use"]
        return Told(text, calls, message["stop_reason"])
    events = _objects(raw)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    pieces = [delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta"]
    calls = ["".join(pieces)] if any(block["type"] == "tool_use" for block in blocks) else []
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    return Told(text, calls, next(e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"))


def _response(raw: str, stream: bool) -> Told:
    assert not stream
    response = json.loads(raw)
    items = response["output"]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    calls = [item["arguments"] for item in items if item["type"] == "function_call"]
    return Told(text, calls, (response.get("incomplete_details") or {}).get("reason", "completed"))


def chat_body(mode: str, most: int) -> Fields:
    tools = [{"type": "function", "function": FUNCTION}]
    return {"messages": MESSAGES, "tools": tools, "tool_choice": mode, "max_tokens": most}


def message_body(mode: str, most: int) -> Fields:
    choice = {"type": "any" if mode == "required" else mode}
    tool = {"name": NAME, "description": FUNCTION["description"], "input_schema": PARAMETERS}
    return {"messages": MESSAGES, "tools": [tool], "tool_choice": choice, "max_tokens": most}


def response_body(mode: str, most: int) -> Fields:
    tools = [{"type": "function", **FUNCTION}]
    return {"input": QUESTION, "tools": tools, "tool_choice": mode, "max_output_tokens": most}


# protocol: path, body, what came, the word of an answer that is cut
PROTOCOLS: Final[dict[str, tuple[str, Callable[[str, int], Fields], Callable[[str, bool], Told], str]]] = {
    "openai": ("/v1/chat/completions", chat_body, _chat, "length"),
    "databricks": ("/serving-endpoints/chat/completions", chat_body, _chat, "length"),
    "mindie": ("/mindie/v1/chat/completions", chat_body, _chat, "length"),
    "ovms": ("/v3/chat/completions", chat_body, _chat, "length"),
    "anthropic": ("/v1/messages", message_body, _message, "max_tokens"),
    "responses": ("/v1/responses", response_body, _response, "max_output_tokens"),
    "ovms responses": ("/v3/responses", response_body, _response, "max_tokens"),
}
STREAMED: Final = [name for name, entry in PROTOCOLS.items() if entry[2] is not _response]


async def ask(
    client: httpx.AsyncClient, protocol: str, mode: str, most: int, stream: bool, **more: Any
) -> Told:
    path, body, told, _ = PROTOCOLS[protocol]
    fields = {"model": conftest.MODEL, "stream": stream, **body(mode, most), **more}
    if protocol == "mindie":
        fields["top_k"] = 1
    else:
        fields["temperature"] = 0
    answer = await client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return told(answer.text, stream)


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_whole_answer_that_is_cut_has_whole_calls_alone(
    client: httpx.AsyncClient, protocol: str, mode: str
) -> None:
    ended = await ask(client, protocol, mode, 60, False)
    assert len(ended.calls) == 1
    for most in LENGTHS:
        told = await ask(client, protocol, mode, most, False)
        assert (told.text, told.broken) == ("", [])
        assert told.calls in ([], ended.calls)
        assert told == ended if told.end == ended.end else told.end == PROTOCOLS[protocol][3]
        assert told.end != ended.end or most > SURELY_CUT


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("protocol", STREAMED)
async def test_a_stream_that_is_cut_has_no_markup_and_no_word_of_a_call(
    client: httpx.AsyncClient, protocol: str, mode: str
) -> None:
    ended = await ask(client, protocol, mode, 60, True)
    for most in LENGTHS:
        told = await ask(client, protocol, mode, most, True)
        assert told.text == ""
        assert all(ended.calls[0].startswith(call) for call in told.calls)
        assert told == ended if told.end == ended.end else told.end == PROTOCOLS[protocol][3]
        assert told.end != ended.end or most > SURELY_CUT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("protocol", ["openai", "databricks", "ovms", "anthropic"])
async def test_stop_strings_do_not_cut_calls(
    client: httpx.AsyncClient, protocol: str, mode: str, stream: bool
) -> None:
    field = "stop_sequences" if protocol == "anthropic" else "stop"
    ended = await ask(client, protocol, mode, 60, stream)
    for stop in ("Oslo", "\n{", '"', "}\n</tool_call>"):
        told = await ask(client, protocol, mode, 60, stream, **{field: [stop]})
        assert told == ended


@pytest.mark.parametrize("stop", ["<", "{", "tool_call"])
async def test_a_forced_call_is_searched_for_no_stop_string(client: httpx.AsyncClient, stop: str) -> None:
    told = await ask(client, "openai", "required", 60, False, stop=[stop])
    assert told == await ask(client, "openai", "required", 60, False)
    assert told.end == "tool_calls"


async def test_text_beside_tools_is_searched_for_stop_strings(client: httpx.AsyncClient) -> None:
    hello: Any = [{"role": "user", "content": "What is the capital of France?"}]
    whole = await ask(client, "openai", "auto", 60, False, messages=hello)
    assert "Paris" in whole.text
    cut = await ask(client, "openai", "auto", 60, False, messages=hello, stop=["Paris"])
    assert (cut.text, cut.end) == (whole.text.partition("Paris")[0], "stop")
