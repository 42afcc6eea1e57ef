"""The text of an answer -> what is thought, what is said, and calls of tools.

Joins the two parsers a model may need. Knows neither tokens nor the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.text.reasoning import ReasoningFormat, ReasoningParser, find_reasoning_format
from serve_app.text.tokenizer import Tokenizer
from serve_app.text.tools.detect import find_tool_format
from serve_app.text.tools.format import ToolFormat
from serve_app.text.tools.parser import ToolParser
from serve_app.types import GenerateRequest, ToolCallDelta, ToolMode

_PROMPT_END_TOKENS = 16  # hold an opening marker and the whitespace behind it, however they are cut


@dataclass(frozen=True, slots=True)
class Parts:
    """A piece of an answer, sorted."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class AnswerParser:
    """Reads the text of one choice."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called."""
        return self._tools is not None and self._tools.num_calls > 0

    @property
    def complete(self) -> bool:
        """Whether all the calls are there that are wanted, and nothing else is."""
        return self._tools is not None and self._tools.complete

    def feed(self, text: str, *, last: bool) -> Parts:
        """Take more text; `last`: there will be none after it, and nothing is held back any more."""
        reasoning = ""
        if self._reasoning is not None:
            thought = self._reasoning.feed(text)
            reasoning, text = thought.reasoning, thought.text
            if last:
                rest = self._reasoning.end()
                reasoning, text = reasoning + rest.reasoning, text + rest.text
        if self._tools is None:
            return Parts(text, reasoning)
        pieces = self._tools.feed(text)
        if last:
            pieces += self._tools.end()
        return Parts(
            "".join(piece for piece in pieces if isinstance(piece, str)),
            reasoning,
            tuple(piece for piece in pieces if isinstance(piece, ToolCallDelta)),
        )


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one model marks its thoughts and its calls; none: it does not."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @classmethod
    def find(cls, tokenizer: Tokenizer, *, tools: str, reasoning: str) -> AnswerFormat:
        """The formats that two settings name; `auto` is what the tokenizer's files show."""
        return cls(find_tool_format(tools, tokenizer), find_reasoning_format(reasoning, tokenizer))


class AnswerReader:
    """Makes the parsers of one request's choices."""

    def __init__(
        self, format: AnswerFormat, request: GenerateRequest, token_ids: list[int], tokenizer: Tokenizer
    ) -> None:
        """`token_ids` are the prompt's. Raw completions are text and nothing else."""
        # What must match a grammar as a whole is an answer and holds neither thoughts nor calls.
        chat = request.prompt.messages is not None and request.grammar is None
        offered = request.prompt.tools if request.tool_choice.mode is not ToolMode.NONE else ()
        self._names = frozenset(str(tool["function"]["name"]) for tool in offered)
        self._max_calls = None if request.tool_choice.parallel else 1
        self._tools = format.tools if chat and offered else None
        self._reasoning = format.reasoning if chat and request.reasoning else None
        self._opened = False
        if self._reasoning is not None:
            end = tokenizer.decode(token_ids[-_PROMPT_END_TOKENS:], skip_special_tokens=False)
            self._opened = self._reasoning.opened_by(end)
        tokens = [t for f in (self._tools, self._reasoning) if f is not None for t in f.tokens]
        ids = (tokenizer.token_id(token) for token in tokens)
        self.marker_ids = frozenset(i for i in ids if i is not None)  # to be seen though special

    def parser(self) -> AnswerParser | None:
        """A parser for one choice; None when its text is all there is."""
        reasoning, tools = self._reasoning, self._tools
        if reasoning is None and tools is None:
            return None
        return AnswerParser(
            None if reasoning is None else ReasoningParser(reasoning, opened=self._opened),
            None if tools is None else ToolParser(tools, self._names, max_calls=self._max_calls),
        )
