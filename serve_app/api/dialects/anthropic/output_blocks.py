"""The blocks of an answer's content, as they grow: thoughts, text and calls of tools."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final

import pydantic_core

from serve_app.api.dialects.anthropic.answers import ContentBlock, ContentDelta
from serve_app.api.dialects.chat.wire import as_given
from serve_app.json_schema.numerals import loads, restore

TEXT: Final = "text"
THINKING: Final = "thinking"


class TextBlock:
    """What the model says."""

    kind: ClassVar[str] = TEXT

    def __init__(self) -> None:
        self._texts: list[str] = []

    def begin(self) -> ContentBlock:
        """The block at its start, when it is empty."""
        return {"type": "text", "text": ""}

    def add(self, text: str) -> Iterator[ContentDelta]:
        """Add text; returns the deltas for a stream."""
        self._texts.append(text)
        yield {"type": "text_delta", "text": text}

    def end(self) -> Iterator[ContentDelta]:
        """The last deltas, before the block's end."""
        yield from ()

    def fields(self) -> ContentBlock:
        """The complete block."""
        return {"type": "text", "text": "".join(self._texts)}


class ThinkingBlock:
    """The model's thoughts; if they are hidden, a block without their text."""

    kind: ClassVar[str] = THINKING

    def __init__(self, *, is_hidden: bool) -> None:
        self._is_hidden = is_hidden
        self._texts: list[str] = []

    def begin(self) -> ContentBlock:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def add(self, text: str) -> Iterator[ContentDelta]:
        self._texts.append(text)
        if not self._is_hidden:
            yield {"type": "thinking_delta", "thinking": text}

    def end(self) -> Iterator[ContentDelta]:
        yield {"type": "signature_delta", "signature": self._signature()}

    def fields(self) -> ContentBlock:
        shown = "" if self._is_hidden else "".join(self._texts)
        return {"type": "thinking", "thinking": shown, "signature": self._signature()}

    def _signature(self) -> str:
        """A signature, since clients drop thoughts without one. It is only a digest and is never checked."""
        return b64encode(hashlib.sha256("".join(self._texts).encode()).digest()).decode()


class ToolUseBlock:
    """A call of a tool."""

    def __init__(self, index: int, id: str, name: str) -> None:
        self.index = index  # among the calls
        self._id, self._name = id, name
        self._fragments: list[str] = []

    def begin(self) -> ContentBlock:
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": {}}

    def add(self, text: str) -> Iterator[ContentDelta]:
        self._fragments.append(text)
        if text:
            yield {"type": "input_json_delta", "partial_json": text}

    def end(self) -> Iterator[ContentDelta]:
        yield from ()

    def fields(self) -> ContentBlock:
        input = _object("".join(self._fragments))
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": input}


Block = TextBlock | ThinkingBlock | ToolUseBlock  # a part of the content


def _object(text: str) -> Any:
    """Arguments as a JSON object; if the JSON was cut off, the members that are complete enough to read."""
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=True) if text.strip() else {}
        with suppress(ValueError):  # it was cut
            value = restore(value, loads(text))
    except ValueError:
        value = {}
    return as_given(value if isinstance(value, dict) else {})
