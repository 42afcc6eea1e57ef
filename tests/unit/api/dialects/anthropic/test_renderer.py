"""The renderer of messages: what no demo model does, thoughts among it."""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from typing import Any

import pytest
from anthropic.types import Message

from serve_app.api.dialects.anthropic.dialect import MessageDialect
from serve_app.api.protocol.dialect import Choice, Renderer
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason, TokenDelta, ToolCallDelta, Usage
from tests.support.fakes_backend import model_info
from tests.support.message_events import message_events_of, message_of

USAGE = Usage(prompt_tokens=5, completion_tokens=9, reasoning_tokens=3)
BODY = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 50}


def delta(**fields: Any) -> TokenDelta:
    return TokenDelta(request_id="r", index=0, usage=Usage(prompt_tokens=5), **fields)


def calls(index: int, *pieces: str) -> list[TokenDelta]:
    head = ToolCallDelta(index=index, id=f"call_{index}", name=f"f{index}", arguments=pieces[0])
    rest = [ToolCallDelta(index=index, arguments=piece) for piece in pieces[1:]]
    return [delta(tool_calls=(each,)) for each in (head, *rest)]


DELTAS = [
    delta(reasoning="Hm"),
    delta(reasoning=" so."),
    delta(),
    delta(text="I"),
    delta(text=" look."),
    *calls(0, "", '{"a"', ": 1}"),
    *calls(1, "{}"),
    delta(finish=FinishReason.TOOL_CALLS),
]


def renderer(**fields: Any) -> Renderer:
    dialect = MessageDialect(notes_pictures=True)
    return dialect.parse(json.dumps({**BODY, **fields}).encode()).renderer("r1", model_info())


def streamed(deltas: list[TokenDelta], **fields: Any) -> list[dict[str, Any]]:
    writes = renderer(stream=True, **fields)
    return message_events_of(
        (b"".join(writes.event(0, each) for each in deltas) + writes.end(USAGE)).decode()
    )


def whole(deltas: list[TokenDelta], **fields: Any) -> Message:
    choice = Choice()
    for each in deltas:
        choice.add(each)
    return Message.model_validate_json(renderer(**fields).whole([choice], USAGE), strict=True)


def test_thoughts_text_and_calls_are_blocks_in_their_order() -> None:
    events = streamed(DELTAS)
    message = message_of(events)
    assert message.model_dump() == whole(DELTAS).model_dump()
    thought, text, first, second = message.content
    assert (thought.type, text.type, first.type, second.type) == ("thinking", "text", "tool_use", "tool_use")
    assert (thought.thinking, text.text) == ("Hm so.", "I look.")
    assert (first.id, first.name, first.input) == ("call_0", "f0", {"a": 1})
    assert (second.id, second.name, second.input) == ("call_1", "f1", {})
    assert (message.id, message.stop_reason) == ("msg_r1", "tool_use")
    details = message.usage.output_tokens_details
    assert details is not None
    assert details.thinking_tokens == 3


def test_a_stream_event_by_event() -> None:
    names = [
        event["type"] + ("" if "delta" not in event else f" {event['delta'].get('type')}")
        for event in streamed(DELTAS)
    ]
    assert names == [
        "message_start",
        "content_block_start", "content_block_delta thinking_delta", "content_block_delta thinking_delta",
        "content_block_delta signature_delta", "content_block_stop",
        "content_block_start", "content_block_delta text_delta", "content_block_delta text_delta",
        "content_block_stop",
        "content_block_start", "content_block_delta input_json_delta", "content_block_delta input_json_delta",
        "content_block_stop",
        "content_block_start", "content_block_delta input_json_delta", "content_block_stop",
        "message_delta None", "message_stop",
    ]  # fmt: skip


def test_thoughts_are_hidden_where_their_display_is_omitted() -> None:
    """With `thinking.display`: the block, and its signature, stay."""
    hides = {"thinking": {"type": "enabled", "display": "omitted"}}
    events = streamed(DELTAS, **hides)
    for message in (message_of(events), whole(DELTAS, **hides)):
        block = message.content[0]
        assert block.type == "thinking"
        assert block.thinking == ""
        assert b64decode(block.signature) == sha256(b"Hm so.").digest()
    assert "Hm" not in json.dumps(events)


def test_thoughts_that_come_back_begin_a_block_of_their_own() -> None:
    deltas = [delta(text="a"), delta(reasoning="b"), delta(text="c"), delta(finish=FinishReason.EOS)]
    assert [block.type for block in message_of(streamed(deltas)).content] == ["text", "thinking", "text"]


def test_an_answer_of_nothing_has_no_block() -> None:
    deltas = [delta(finish=FinishReason.EOS)]
    for message in (message_of(streamed(deltas)), whole(deltas), message_of(streamed([]))):
        assert (message.content, message.stop_reason) == ([], "end_turn")


@pytest.mark.parametrize(
    ("text", "told"),
    [("", {}), ('{"a": [1, 2', {"a": [1, 2]}), ('{"a": "b', {}), ("[1]", {}), ("{5}", {})],
)
def test_the_input_of_a_call_that_was_cut_is_what_there_is_of_it(text: str, told: dict[str, Any]) -> None:
    message = whole([*calls(0, text), delta(finish=FinishReason.LENGTH)])
    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.input, message.stop_reason) == (told, "max_tokens")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"finish": FinishReason.STOP, "stop": "x"}, "stop_sequence", "x"),
        ({"finish": FinishReason.STOP, "stop": 7}, "end_turn", None),
        ({"finish": FinishReason.EOS, "stop": "x"}, "end_turn", None),
    ],
)
def test_a_stop_string_is_told_and_a_stop_token_is_not(
    fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    deltas = [delta(text="a"), delta(**fields)]
    for message in (message_of(streamed(deltas)), whole(deltas)):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_a_stream_that_fails_ends_with_the_error() -> None:
    writes = renderer(stream=True)
    raw = writes.event(0, delta(text="a")) + writes.broken(GenerationFailed("it failed"))
    *_, last = message_events_of(raw.decode())
    assert last == {"type": "error", "error": {"type": "api_error", "message": "it failed"}}
