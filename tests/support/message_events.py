"""The events of a message's stream, as Anthropic frames them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(RawMessageStreamEvent)
_NAMED: Final = re.compile(r"event: (\S+)\ndata: (.*)")


def message_events_of(raw: str) -> list[dict[str, Any]]:
    """The events of a stream, named by their type and of the anthropic package's types."""
    *parts, rest = raw.split("\n\n")
    if rest:
        raise AssertionError(f"the stream does not end with an event: {rest[-200:]!r}")
    found: list[dict[str, Any]] = []
    for part in parts:
        match = _NAMED.fullmatch(part)
        if match is None:
            raise AssertionError(f"not an event: {part[:200]!r}")
        event = json.loads(match[2])
        if event["type"] != match[1]:
            raise AssertionError(f"an event with the wrong name: {part[:200]!r}")
        if event["type"] != "error":
            _EVENT.validate_python(event)
        found.append(event)
    return found


def message_of(events: list[dict[str, Any]]) -> Message:
    """The message that a stream grows into, put together as Anthropic documents it."""
    start, *middle, delta, stop = events
    if (start["type"], delta["type"], stop["type"]) != ("message_start", "message_delta", "message_stop"):
        raise AssertionError(f"not the begin and the end of a message: {start} {delta} {stop}")
    content: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    is_open = False
    for event in middle:
        kind, index = event["type"], event["index"]
        if index != len(content) - (kind != "content_block_start") or is_open == (kind.endswith("start")):
            raise AssertionError(f"out of order: {event}")
        if kind == "content_block_start":
            content.append(event["content_block"])
            is_open = True
        elif kind == "content_block_delta":
            _grow(content[index], inputs, index, event["delta"])
        else:
            is_open = False
    for index, text in inputs.items():
        content[index]["input"] = json.loads(text)
    whole = {**start["message"], "content": content, **delta["delta"], "usage": delta["usage"]}
    return Message.model_validate(whole, strict=True)


def _grow(block: dict[str, Any], inputs: dict[int, str], index: int, delta: dict[str, Any]) -> None:
    match delta["type"], block["type"]:
        case "text_delta", "text":
            block["text"] += delta["text"]
        case "thinking_delta", "thinking":
            block["thinking"] += delta["thinking"]
        case "signature_delta", "thinking":
            block["signature"] = delta["signature"]
        case "input_json_delta", "tool_use":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]
        case _:
            raise AssertionError(f"a delta of another block: {delta} {block}")
