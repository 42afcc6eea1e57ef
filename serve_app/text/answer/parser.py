"""The text of an answer -> thoughts, text, and calls of tools.

Combines the two parsers that a model may need. Independent of tokens and of the wire format.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from serve_app.text.answer.reasoning import ReasoningParser
from serve_app.text.answer.tools.parser import ToolParser
from serve_app.types import ToolCallDelta


class AnswerPart(NamedTuple):
    """A piece of an answer, split into thoughts, text and calls."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    def followed_by(self, more: AnswerPart) -> AnswerPart:
        """This piece and the next one together."""
        return AnswerPart(self.text + more.text, self.reasoning + more.reasoning, self.calls + more.calls)


class AnswerParser:
    """Reads the text of one choice."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def whole_calls(self) -> Set[int]:
        """The indices of the calls whose arguments have ended."""
        return frozenset() if self._tools is None else self._tools.whole

    @property
    def calls_well(self) -> bool:
        """Whether there were tool calls, all of them with complete arguments."""
        return self._tools is not None and 0 < self._tools.num_calls == len(self._tools.whole)

    @property
    def in_call(self) -> bool:
        """Whether what comes next belongs to a call."""
        thinks = self._reasoning is not None and not self._reasoning.ended
        return self._tools is not None and self._tools.in_call and not thinks

    @property
    def thinks(self) -> bool:
        """Whether thoughts are separated from the text."""
        return self._reasoning is not None

    @property
    def ends_itself(self) -> bool:
        """Whether an answer ends with its last wanted call, even if the model would go on."""
        return self._tools is not None and self._tools.limited

    @property
    def complete(self) -> bool:
        """Whether all wanted calls are complete, so that the answer may end."""
        return self._tools is not None and self._tools.complete

    def feed(self, text: str, *, last: bool, cut: bool = False) -> AnswerPart:
        """Take more text. With `last`, no more text follows and nothing is held back.

        `cut`: the model had not ended its answer, so an unfinished call is dropped instead of shown as text.
        """
        reasoning = ""
        if self._reasoning is not None:
            thought = self._reasoning.feed(text)
            reasoning, text = thought.reasoning, thought.text
            if last:
                rest = self._reasoning.end()
                reasoning, text = reasoning + rest.reasoning, text + rest.text
        if self._tools is None:
            return AnswerPart(text, reasoning)
        pieces = self._tools.feed(text)
        if last:
            pieces += self._tools.end(cut=cut)
        return AnswerPart(
            "".join(piece for piece in pieces if isinstance(piece, str)),
            reasoning,
            tuple(piece for piece in pieces if isinstance(piece, ToolCallDelta)),
        )
