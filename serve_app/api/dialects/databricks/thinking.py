"""A client's options for thinking, and thoughts as parts of a message's content.

Depends neither on bodies nor on the order of messages.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app import limits
from serve_app.api.dialects.chat.messages import parse_string
from serve_app.api.dialects.chat.templating import with_effort, with_thinking
from serve_app.api.dialects.chat.thinking_budget import DISABLED, ThinkingOptions
from serve_app.api.dialects.databricks.answers import ThoughtPart
from serve_app.errors import InvalidField
from serve_app.types import Templating

PART: Final = "reasoning"  # the type of a part with thoughts
_SUMMARY: Final = "summary_text"


def templating(thinking: ThinkingOptions | None, effort: str | None) -> Templating:
    """The template variables that `thinking` and `effort` set."""
    return with_thinking(with_effort(Templating(), effort), None if thinking is None else thinking.is_on)


def tells_parts(thinking: ThinkingOptions | None) -> bool:
    """Whether thoughts are sent as parts of the answer's content, rather than beside the content."""
    return thinking is not None and thinking.type not in (None, DISABLED)


def thoughts_part(text: str) -> ThoughtPart:
    """Thoughts, or a piece of them, as a part of the content."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def with_thoughts_apart(message: dict[str, Any], where: str) -> dict[str, Any]:
    """An assistant's earlier message with its thoughts beside its content. Raises InvalidField."""
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, list):
        return message
    places = [i for i, part in enumerate(content) if isinstance(part, dict) and part.get("type") == PART]
    if not places:
        return message
    thoughts = [_thoughts(content[i].get("summary"), f"{where}.content.{i}.summary") for i in places]
    said = [part for i, part in enumerate(content) if i not in places]
    return {**message, "content": said, "reasoning_content": "\n".join(thoughts)}


def _thoughts(summary: Any, where: str) -> str:
    if not isinstance(summary, list) or len(summary) > limits.MAX_CONTENT_PARTS:
        raise InvalidField(where, f"must be a list of up to {limits.MAX_CONTENT_PARTS} texts")
    texts = []
    for i, text in enumerate(summary):
        if not isinstance(text, dict) or text.get("type") != _SUMMARY:
            raise InvalidField(f"{where}.{i}", f"must be an object of type {_SUMMARY}")
        texts.append(parse_string(text.get("text"), f"{where}.{i}.text"))
    return "\n".join(texts)
