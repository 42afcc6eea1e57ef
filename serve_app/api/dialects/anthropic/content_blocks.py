"""Blocks of content -> parts of messages for a chat template: texts, thoughts, calls and their results.

Depends neither on the order of messages nor on the other fields of a body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from serve_app.api.dialects.chat.messages import parse_name, parse_string
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_CONTENT_PARTS

TEXT: Final = "text"
DOCUMENT: Final = "document"
SEARCH_RESULT: Final = "search_result"
TOOL_USE: Final = "tool_use"
TOOL_RESULT: Final = "tool_result"
THINKING: Final = "thinking"
REDACTED: Final = "redacted_thinking"
READ: Final = (TEXT, DOCUMENT, SEARCH_RESULT)  # the types of blocks that hold text for the model to read

Block = dict[str, Any]


def parse_blocks(value: Any, where: str, kinds: Collection[str]) -> Iterator[tuple[Block, str]]:
    """The blocks of a message's content, each with its place; a string is one block of text.

    Raises InvalidField; raises UnsupportedField for a type that is not one of `kinds`.
    """
    if isinstance(value, str):
        yield {"type": TEXT, "text": value}, where
        return
    if not isinstance(value, list) or len(value) > MAX_CONTENT_PARTS:
        raise InvalidField(where, f"must be a string or a list of up to {MAX_CONTENT_PARTS} blocks")
    for i, block in enumerate(value):
        at = f"{where}.{i}"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidField(at, "must be an object with a type")
        if block["type"] not in kinds:
            raise UnsupportedField(f"{at}.type", f"only {', '.join(kinds)} blocks are available here")
        yield block, at


def parse_texts(value: Any, where: str, kinds: Collection[str] = (TEXT,)) -> str:
    """The text of blocks, which must all be of `kinds`. Raises InvalidField or UnsupportedField."""
    return "\n".join(read_text(block, at) for block, at in parse_blocks(value, where, kinds))


def read_text(block: Block, where: str) -> str:
    """The text of a block whose type is in `READ`. Raises InvalidField or UnsupportedField."""
    if block["type"] == TEXT:
        return parse_string(block.get("text"), f"{where}.text")
    if block["type"] == DOCUMENT:
        text, heads = _document(block.get("source"), f"{where}.source"), ("title", "context")
    else:
        text, heads = parse_texts(block.get("content"), f"{where}.content"), ("title", "source")
    given = [(head, block[head]) for head in heads if block.get(head) is not None]
    return "\n".join([*(f"{head}: {parse_string(said, f'{where}.{head}')}" for head, said in given), text])


def parse_thoughts(block: Block, where: str) -> str:
    """The thoughts. Hidden thoughts are empty. Raises InvalidField."""
    return "" if block["type"] == REDACTED else parse_string(block.get("thinking"), f"{where}.thinking")


def parse_tool_use(block: Block, where: str) -> dict[str, Any]:
    """An earlier call as templates expect it. Raises InvalidField."""
    if not isinstance(block.get("input"), dict):
        raise InvalidField(f"{where}.input", "must be an object")
    function = {"name": parse_name(block.get("name"), f"{where}.name"), "arguments": block["input"]}
    return {"type": "function", "function": function, "id": parse_name(block.get("id"), f"{where}.id")}


def parse_tool_result(block: Block, where: str) -> tuple[str, str]:
    """The id of the call, and the call's result. Raises InvalidField or UnsupportedField."""
    content = block.get("content")
    text = "" if content is None else parse_texts(content, f"{where}.content", READ)
    return parse_name(block.get("tool_use_id"), f"{where}.tool_use_id"), text


def _document(source: Any, where: str) -> str:
    """The text of a document."""
    if not isinstance(source, dict):
        raise InvalidField(where, "must be an object")
    if source.get("type") == "text":
        return parse_string(source.get("data"), f"{where}.data")
    if source.get("type") == "content":
        return parse_texts(source.get("content"), f"{where}.content")
    raise UnsupportedField(f"{where}.type", "only text and content are available")
