"""The field `input` of a response -> messages for a chat template.

The items of one turn of the assistant (its thoughts, texts and calls) become one message, as templates
expect. Depends on no other field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from serve_app.api.dialects.chat.messages import (
    MAX_TOOL_CALLS,
    custom_call,
    parse_call,
    parse_content,
    parse_name,
    parse_string,
)
from serve_app.api.dialects.responses import client_tools
from serve_app.api.dialects.responses.previous_response import PREVIOUS, REFERENCE
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_CONTENT_PARTS, MAX_MESSAGES

ROLES: Final = ("user", "assistant", "system", "developer")
TEXTS: Final = ("input_text", "output_text", "text")  # types of parts that hold text

_KNOWN: Final = (
    "message, reasoning, function_call, custom_tool_call, local_shell_call, shell_call and apply_patch_call "
    "items, and outputs of such calls, are available"
)


def parse_input(
    value: Any,
    instructions: str | None,
    *,
    history: Sequence[dict[str, Any]] = (),
    keeps_thoughts: bool = False,
) -> tuple[dict[str, Any], ...]:
    """The messages of `input`, after the instructions and the items of earlier responses.

    `keeps_thoughts`: whether thoughts are kept even if nothing else follows in their turn. Raises
    InvalidField or UnsupportedField.
    """
    if value is None:
        raise InvalidField("input", "is required")
    conversation = _Conversation(keeps_thoughts)
    if instructions is not None:
        conversation.say("system", instructions)
    if len(history) > MAX_MESSAGES:
        raise InvalidField(PREVIOUS, f"must go on from at most {MAX_MESSAGES} items")
    for item in history:
        _add(conversation, item, PREVIOUS)
    if isinstance(value, str):
        conversation.say("user", value)
        return conversation.messages
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidField("input", f"must be a string or a list of 1 to {MAX_MESSAGES} items")
    for i, item in enumerate(value):
        _add(conversation, item, f"input.{i}")
    conversation.end_turn()
    return conversation.messages


class _Conversation:
    """The messages so far."""

    def __init__(self, keeps_thoughts: bool) -> None:
        self._keeps_thoughts = keeps_thoughts
        self._messages: list[dict[str, Any]] = []
        self._thoughts: list[str] = []  # of the assistant's message that comes next

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._messages)

    def say(self, role: str, content: str) -> None:
        if role != "assistant":
            self.end_turn()
        said = {"role": role, "content": content, **self._thought()}
        if role == "assistant" and self._messages and "tool_calls" in self._messages[-1]:
            # This text comes after the turn's calls, which still wait for the tools' results.
            last = self._messages[-1]
            for name in ("content", "reasoning_content"):
                if more := said.get(name):
                    last[name] = "\n".join(filter(None, (last.get(name), more)))
            return
        self._messages.append(said)

    def think(self, text: str) -> None:
        if text:
            self._thoughts.append(text)

    def call(self, call: dict[str, Any], where: str) -> None:
        """Add a call to the message with the assistant's preceding text and calls. Raises InvalidField."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or self._thoughts:
            last = {"role": "assistant", "content": "", **self._thought()}
            self._messages.append(last)
        calls = last.setdefault("tool_calls", [])
        if len(calls) == MAX_TOOL_CALLS:
            raise InvalidField(where, f"must be one of at most {MAX_TOOL_CALLS} calls in a turn")
        calls.append(call)

    def answer(self, call_id: str, content: str) -> None:
        self.end_turn()
        self._messages.append({"role": "tool", "content": content, "tool_call_id": call_id})

    def end_turn(self) -> None:
        """End a turn. Thoughts without text or a call after them become their own message, or are dropped."""
        if self._thoughts and self._keeps_thoughts:
            self._messages.append({"role": "assistant", "content": "", **self._thought()})
        self._thoughts.clear()

    def _thought(self) -> dict[str, str]:
        """The thoughts before a message, as a member of the message."""
        if not self._thoughts:
            return {}
        text = "\n".join(self._thoughts)
        self._thoughts.clear()
        return {"reasoning_content": text}


def _add(conversation: _Conversation, item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise InvalidField(where, "must be an object")
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        role = item.get("role")
        if role not in ROLES:
            raise InvalidField(f"{where}.role", f"must be one of {', '.join(ROLES)}")
        content = _text(item.get("content"), f"{where}.content")
        conversation.say("system" if role == "developer" else str(role), content)
    elif kind == "reasoning":
        conversation.think(_thoughts(item, where))
    elif kind == "function_call":
        call = parse_call(item, where)
        conversation.call({**call, "id": parse_name(item.get("call_id"), f"{where}.call_id")}, where)
    elif kind == "custom_tool_call":
        call = custom_call(item, where)
        conversation.call({**call, "id": parse_name(item.get("call_id"), f"{where}.call_id")}, where)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        call_id = parse_name(item.get("call_id"), f"{where}.call_id")
        conversation.answer(call_id, _text(item.get("output"), f"{where}.output"))
    elif kind in client_tools.CALLS:
        conversation.call(client_tools.earlier_call(item, str(kind), where), where)
    elif kind in client_tools.OUTPUTS:
        conversation.answer(*client_tools.answered(item, str(kind), where))
    elif kind == REFERENCE:
        raise UnsupportedField(f"{where}.type", "no item is kept here, as with store: false: send the item")
    elif not isinstance(kind, str):
        raise InvalidField(f"{where}.type", f"is required; {_KNOWN}")
    else:
        raise UnsupportedField(f"{where}.type", f"only {_KNOWN}")


def _text(value: Any, where: str) -> str:
    text = parse_content(value, where, TEXTS)
    if text is None:
        raise InvalidField(where, "is required")
    return text


def _thoughts(item: dict[str, Any], where: str) -> str:
    """The text of a reasoning item, or, if it has none, the text of its summary."""
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(field)
        if parts is None:
            continue
        if not isinstance(parts, list) or len(parts) > MAX_CONTENT_PARTS:
            raise InvalidField(f"{where}.{field}", f"must be a list of up to {MAX_CONTENT_PARTS} parts")
        texts = [_part(part, kind, f"{where}.{field}.{i}") for i, part in enumerate(parts)]
        if texts:
            return "\n".join(texts)
    return ""


def _part(part: Any, kind: str, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != kind:
        raise InvalidField(where, f"must be an object of type {kind}")
    return parse_string(part.get("text"), f"{where}.text")
