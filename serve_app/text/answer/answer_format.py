"""How a model marks its thoughts and calls, and the parsers and grammars of one request.

Chooses parsers and grammars; independent of how those work, and of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from serve_app.errors import UnsupportedField
from serve_app.json_schema import COMPACT, SPACE
from serve_app.text.answer.grammar import FIELD, form_of
from serve_app.text.answer.parser import AnswerParser
from serve_app.text.answer.reasoning import ReasoningFormat, ReasoningParser, find_reasoning_format
from serve_app.text.answer.thinking_budget import FIELD as THINKING_FIELD
from serve_app.text.answer.thinking_budget import ThinkingRules
from serve_app.text.answer.tools.detect import find_tool_format
from serve_app.text.answer.tools.forcing import FIELD as TOOLS_FIELD
from serve_app.text.answer.tools.forcing import CallRules, answer_grammar, call_grammar
from serve_app.text.answer.tools.format import ToolFormat
from serve_app.text.answer.tools.parser import ToolParser
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import GenerateRequest, Grammar, GrammarKind, ToolMode

_JSON: Final = (GrammarKind.JSON, GrammarKind.SCHEMA)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The formats of one model; None for a kind that it does not have."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    space: str = SPACE  # a regex: allowed between tokens of JSON, if the request says nothing

    @classmethod
    def find(cls, tokenizer: Tokenizer, *, tools: str, reasoning: str, compact_json: bool) -> AnswerFormat:
        """The formats that the two settings name; `auto` finds them in the tokenizer's files."""
        space = COMPACT if compact_json else SPACE
        return cls(find_tool_format(tools, tokenizer), find_reasoning_format(reasoning, tokenizer), space)

    def limits_thoughts(self, tokenizer: Tokenizer) -> bool:
        """Whether a budget can end the model's thoughts; this requires an end marker that is a token."""
        return self.reasoning is None or tokenizer.token_id(self.reasoning.close) is not None


class AnswerReader:
    """The form of the answers to one request; makes their grammar and their parsers."""

    def __init__(
        self, format: AnswerFormat, request: GenerateRequest, token_ids: list[int], tokenizer: Tokenizer
    ) -> None:
        """`token_ids` are the ids of the prompt. Raw completions are text and nothing else.

        Raises UnsupportedField for calls that cannot be forced.
        """
        choice = request.tool_choice
        self._mode = choice.mode
        self._several = choice.parallel and choice.mode is not ToolMode.NAMED
        self._space = format.space
        self._grammar = _spaced(request.grammar, format.space)
        self._is_json = request.grammar is not None and request.grammar.kind in _JSON
        self._functions: list[dict[str, Any]] = []
        self._tools: ToolFormat | None = None
        self._thoughts: ThinkingRules | None = None
        if request.prompt.messages is not None:
            if request.prompt.tools and choice.mode is not ToolMode.NONE:
                self._offer(format, request)
            # Any other grammar is for the whole answer, and leaves no room for thoughts.
            if request.reasoning and format.reasoning and (request.grammar is None or self._is_json):
                self._thoughts = ThinkingRules.after(
                    token_ids, tokenizer, format.reasoning, request.thinking_tokens
                )
        self._token_ids = self._markers(tokenizer)
        self._written_ids = _written(self._grammar, tokenizer)
        if self._thoughts is not None and not self._thoughts.can_be_limited(self._token_ids):
            self._thoughts = replace(self._thoughts, most=None)

    @property
    def marker_ids(self) -> frozenset[int]:
        """The marker tokens, which must not be skipped even if they are special."""
        return self._written_ids.union(self._token_ids.values())

    def grammar(self) -> Grammar | None:
        """The grammar of an answer, or None. Raises InvalidField.

        This is the request's own grammar, unless thoughts or calls must be allowed too.
        """
        calls, thoughts = self._call_rules(), self._thoughts
        makes_room = thoughts is not None and (self._is_json or thoughts.most is not None)
        if calls is None and not makes_room:
            return self._grammar
        form = form_of(self._grammar) if self._grammar is not None and self._is_json else None
        return answer_grammar(self._token_ids, thoughts=thoughts, form=form, calls=calls)

    @property
    def grammar_field(self) -> str:
        """The field to name in errors of the grammar."""
        if self._call_rules() is not None:
            return TOOLS_FIELD
        return THINKING_FIELD if self._grammar is None else FIELD

    @property
    def call_grammars(self) -> list[tuple[str, Grammar]]:
        """The tools whose calls have a grammar, each with the grammar of its arguments."""
        if self._call_rules() is None:
            return []
        return [(function["name"], call_grammar(function, self._space)) for function in self._functions]

    def parser(self) -> AnswerParser | None:
        """A parser for one choice; None if the choice contains nothing but text."""
        thoughts, tools = self._thoughts, self._tools
        if thoughts is None and tools is None:
            return None
        names = frozenset(str(function["name"]) for function in self._functions)
        max_calls = None if self._several else 1
        return AnswerParser(
            None if thoughts is None else ReasoningParser(thoughts.format, opened=thoughts.opened),
            None
            if tools is None
            else ToolParser(
                tools,
                names,
                max_calls=max_calls,
                forced=self._mode is not ToolMode.AUTO,
                leads=self._is_json,
            ),
        )

    def _offer(self, format: AnswerFormat, request: GenerateRequest) -> None:
        name = request.tool_choice.name
        functions = [tool["function"] for tool in request.prompt.tools]
        self._functions = [f for f in functions if self._mode is not ToolMode.NAMED or f["name"] == name]
        self._tools = format.tools
        if self._tools is None and self._mode is not ToolMode.AUTO:
            raise UnsupportedField(
                "tool_choice", "how this model writes calls is not known; only auto and none are available"
            )

    def _call_rules(self) -> CallRules | None:
        """None if calls are unconstrained, or if no marker tells the grammar where they begin."""
        if self._tools is None:
            return None
        forced = self._mode is not ToolMode.AUTO
        if not forced and not self._is_json:
            strict = any(function.get("strict") for function in self._functions)
            marker = self._tools.marker
            begins = marker in self._token_ids and self._tools.spelling.first.startswith(marker)
            if self._grammar is not None or not (strict and begins):
                return None
        return CallRules(self._tools.spelling, self._functions, self._several, forced, self._space)

    def _markers(self, tokenizer: Tokenizer) -> dict[str, int]:
        tokens = () if self._tools is None else self._tools.tokens
        tokens += () if self._thoughts is None else self._thoughts.format.tokens
        return {token: i for token in tokens if (i := tokenizer.token_id(token)) is not None}


def _spaced(grammar: Grammar | None, space: str) -> Grammar | None:
    """`grammar`; if it is JSON without a spacing, the model's own spacing is added."""
    if grammar is None or grammar.kind not in _JSON or grammar.space is not None:
        return grammar
    return replace(grammar, space=space)


def _written(grammar: Grammar | None, tokenizer: Tokenizer) -> frozenset[int]:
    """The model's control tokens named in markers of `grammar`, which it may write instead of their names."""
    texts = [] if grammar is None else [rule.text for rule in grammar.markers]
    names = {name for text in texts for name in tokenizer.controls.pattern.findall(text)}
    return frozenset(i for name in names if (i := tokenizer.token_id(name)) is not None)
