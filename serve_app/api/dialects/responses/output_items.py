"""The items of a response's output, as they grow: thoughts, texts and calls of tools.

Each item writes its own events. Depends neither on the order of items nor on the response around them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from serve_app.api.dialects.chat.answers import ListedToken
from serve_app.api.dialects.chat.custom_tools import text_of
from serve_app.api.dialects.chat.wire import token_with_alternatives
from serve_app.types import TextLogprob, ToolCallDelta

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"

# Kinds of items, which are their types, too.
REASONING: Final = "reasoning"
MESSAGE: Final = "message"
CALL: Final = "function_call"
CUSTOM_CALL: Final = "custom_tool_call"

Fields = dict[str, Any]
Event = tuple[str, Fields]  # its type, and its members but for those of every event


class TextItem(ABC):
    """An item with one part of text."""

    kind: ClassVar[str]
    delta_type: ClassVar[str]
    done_type: ClassVar[str]  # of the event that has all of the text
    part_type: ClassVar[str] = "response.content_part"  # of the events around the text, without their ends

    def __init__(self, id: str) -> None:
        self.id = id
        self.status = IN_PROGRESS
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str) -> None:
        """Add the next piece of the text."""
        self._texts.append(text)

    @abstractmethod
    def take(self, tokens: Sequence[TextLogprob]) -> Fields:
        """Take log-probabilities of tokens; returns their members of the event with the tokens' text."""

    @abstractmethod
    def part(self) -> Fields:
        """The part as it is now."""

    @abstractmethod
    def fields(self) -> Fields:
        """The item as it is now."""

    def parts(self) -> list[Fields]:
        """The parts as the item lists them; empty until the item has ended."""
        return [] if self.status == IN_PROGRESS else [self.part()]

    def begin(self) -> Iterator[Event]:
        """The events after the one that adds the item."""
        yield f"{self.part_type}.added", {**self.place(), "part": self.part()}

    def end(self) -> Iterator[Event]:
        """The last events before the one that shows the whole item."""
        yield self.done_type, {**self.place(), "text": self.text, **self._beside()}
        yield f"{self.part_type}.done", {**self.place(), "part": self.part()}

    def place(self) -> Fields:
        """The members that say, in events about the item's text, where it is."""
        return {"item_id": self.id, "content_index": 0}

    def _beside(self) -> Fields:
        """In the event that has the whole text, the members besides the text."""
        return {}


class Reasoning(TextItem):
    """The model's thoughts. Only text has log-probabilities."""

    kind = REASONING
    delta_type = "response.reasoning_text.delta"
    done_type = "response.reasoning_text.done"

    def take(self, tokens: Sequence[TextLogprob]) -> Fields:
        return {}

    def part(self) -> Fields:
        return {"type": "reasoning_text", "text": self.text}

    def fields(self) -> Fields:
        return {
            "id": self.id,
            "type": self.kind,
            "summary": [],
            "content": self.parts(),
            "status": self.status,
        }


class Summary(Reasoning):
    """The model's thoughts, sent as a summary, because many clients show only the summary."""

    delta_type = "response.reasoning_summary_text.delta"
    done_type = "response.reasoning_summary_text.done"
    part_type = "response.reasoning_summary_part"

    def place(self) -> Fields:
        return {"item_id": self.id, "summary_index": 0}

    def part(self) -> Fields:
        return {"type": "summary_text", "text": self.text}

    def fields(self) -> Fields:
        return {**super().fields(), "summary": self.parts(), "content": []}


class Message(TextItem):
    """What the model says."""

    kind = MESSAGE
    delta_type = "response.output_text.delta"
    done_type = "response.output_text.done"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._logprobs: list[ListedToken] = []

    def take(self, tokens: Sequence[TextLogprob]) -> Fields:
        listed = [token_with_alternatives(token) for token in tokens]
        self._logprobs += listed
        return {"logprobs": listed}

    def part(self) -> Fields:
        return {"type": "output_text", "text": self.text, "annotations": [], **self._beside()}

    def fields(self) -> Fields:
        return {
            "id": self.id,
            "type": self.kind,
            "role": "assistant",
            "content": self.parts(),
            "status": self.status,
        }

    def _beside(self) -> Fields:
        return {"logprobs": self._logprobs}


class Call:
    """A call of a tool."""

    delta_type: ClassVar[str] = "response.function_call_arguments.delta"
    is_told_in_pieces: ClassVar[bool] = True
    is_told_late: ClassVar[bool] = False  # its item is added once the call is whole

    def __init__(self, id: str, piece: ToolCallDelta, namespace: str | None = None) -> None:
        """`piece`: the call's first piece. The piece's arguments are added later, by `add`."""
        self.id = id
        self._namespace = {} if namespace is None else {"namespace": namespace}
        self.status = IN_PROGRESS
        self.index = piece.index
        self.call_id, self.name = piece.id or "", piece.name or ""
        self._fragments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._fragments)

    def add(self, text: str) -> None:
        self._fragments.append(text)

    def place(self) -> Fields:
        return {"item_id": self.id}

    def begin(self) -> Iterator[Event]:
        yield from ()

    def end(self) -> Iterator[Event]:
        yield (
            "response.function_call_arguments.done",
            {**self.place(), "name": self.name, "arguments": self.arguments},
        )

    def fields(self) -> Fields:
        return {
            "id": self.id,
            "type": CALL,
            "call_id": self.call_id,
            "name": self.name,
            **self._namespace,
            "arguments": self.arguments,
            "status": self.status,
        }


class CustomCall(Call):
    """A call of a custom tool. Its only argument is a text, which is known once the call is complete."""

    delta_type: ClassVar[str] = "response.custom_tool_call_input.delta"
    is_told_in_pieces: ClassVar[bool] = False

    @property
    def input(self) -> str:
        """The text; if the call was cut off, the part that arrived."""
        return text_of(self.arguments)

    def end(self) -> Iterator[Event]:
        yield self.delta_type, {**self.place(), "delta": self.input}
        yield "response.custom_tool_call_input.done", {**self.place(), "input": self.input}

    def fields(self) -> Fields:
        return {
            "id": self.id,
            "type": CUSTOM_CALL,
            "call_id": self.call_id,
            "name": self.name,
            **self._namespace,
            "input": "" if self.status == IN_PROGRESS else self.input,
            "status": self.status,
        }


Item = TextItem | Call  # a part of the output
