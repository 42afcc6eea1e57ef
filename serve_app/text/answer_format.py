"""How a model marks its thoughts and its calls, and what that means for one request.

Chooses parsers and grammars; knows neither how they work nor the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from serve_app.errors import UnsupportedField
from serve_app.text.answer import AnswerParser
from serve_app.text.reasoning import ReasoningFormat, ReasoningParser, find_reasoning_format
from serve_app.text.tokenizer import Tokenizer
from serve_app.text.tools.detect import find_tool_format
from serve_app.text.tools.forcing import CallRules, Thoughts, answer_grammar, schema_of
from serve_app.text.tools.format import ToolFormat
from serve_app.text.tools.parser import ToolParser
from serve_app.types import GenerateRequest, Grammar, ToolMode

_PROMPT_END_TOKENS: Final = 16  # hold an opening marker and the whitespace behind it, however they are cut


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The formats of one model; None: it has none."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @classmethod
    def find(cls, tokenizer: Tokenizer, *, tools: str, reasoning: str) -> AnswerFormat:
        """The formats that two settings name; `auto` is what the tokenizer's files show."""
        return cls(find_tool_format(tools, tokenizer), find_reasoning_format(reasoning, tokenizer))


class AnswerReader:
    """What the answers to one request look like: makes their grammar and their parsers."""

    def __init__(
        self, format: AnswerFormat, request: GenerateRequest, token_ids: list[int], tokenizer: Tokenizer
    ) -> None:
        """`token_ids` are the prompt's. Raw completions are text and nothing else.

        Raises UnsupportedField for calls that cannot be forced.
        """
        choice = request.tool_choice
        self._mode = choice.mode
        self._several = choice.parallel and choice.mode is not ToolMode.NAMED
        self._grammar = request.grammar
        self._schema = None if request.grammar is None else schema_of(request.grammar)
        self._functions: list[dict[str, Any]] = []
        self._tools: ToolFormat | None = None
        self._thoughts: Thoughts | None = None
        if request.prompt.messages is not None:
            if request.prompt.tools and choice.mode is not ToolMode.NONE:
                self._offer(format, request)
            # Any other grammar is one of the whole answer, and leaves no room for thoughts.
            if request.reasoning and (request.grammar is None or self._schema is not None):
                self._thoughts = _thoughts(format, token_ids, tokenizer)
        self._token_ids = self._markers(tokenizer)

    @property
    def marker_ids(self) -> frozenset[int]:
        """The tokens of markers, which must be seen though they may be special."""
        return frozenset(self._token_ids.values())

    def grammar(self) -> Grammar | None:
        """What an answer must match; None: nothing.

        The request's own grammar, unless it has to make room for thoughts or for calls.
        """
        calls = self._call_rules()
        if calls is None and (self._thoughts is None or self._schema is None):
            return self._grammar
        return answer_grammar(self._token_ids, thoughts=self._thoughts, schema=self._schema, calls=calls)

    def parser(self) -> AnswerParser | None:
        """A parser for one choice; None when its text is all there is."""
        thoughts, tools = self._thoughts, self._tools
        if thoughts is None and tools is None:
            return None
        names = frozenset(str(function["name"]) for function in self._functions)
        max_calls = None if self._several else 1
        return AnswerParser(
            None if thoughts is None else ReasoningParser(thoughts.format, opened=thoughts.opened),
            None if tools is None else ToolParser(tools, names, max_calls=max_calls),
        )

    def _offer(self, format: AnswerFormat, request: GenerateRequest) -> None:
        name = request.tool_choice.name
        functions = [tool["function"] for tool in request.prompt.tools]
        self._functions = [f for f in functions if self._mode is not ToolMode.NAMED or f["name"] == name]
        self._tools = format.tools
        if self._tools is None and self._mode is not ToolMode.AUTO:
            raise UnsupportedField(
                "tool_choice: how this model writes calls is not known; only auto and none are available",
                param="tool_choice",
            )

    def _call_rules(self) -> CallRules | None:
        """None where calls are free, or where no marker shows a grammar when they begin."""
        if self._tools is None:
            return None
        forced = self._mode is not ToolMode.AUTO
        if not forced and self._schema is None:
            strict = any(function.get("strict") for function in self._functions)
            marker = self._tools.marker
            begins = marker in self._token_ids and self._tools.spelling.first.startswith(marker)
            if self._grammar is not None or not (strict and begins):
                return None
        return CallRules(self._tools.spelling, self._functions, self._several, forced)

    def _markers(self, tokenizer: Tokenizer) -> dict[str, int]:
        tokens = () if self._tools is None else self._tools.tokens
        tokens += () if self._thoughts is None else self._thoughts.format.tokens
        return {token: i for token in tokens if (i := tokenizer.token_id(token)) is not None}


def _thoughts(format: AnswerFormat, token_ids: list[int], tokenizer: Tokenizer) -> Thoughts | None:
    if format.reasoning is None:
        return None
    end = tokenizer.decode(token_ids[-_PROMPT_END_TOKENS:], skip_special_tokens=False)
    return Thoughts(format.reasoning, format.reasoning.opened_by(end))
