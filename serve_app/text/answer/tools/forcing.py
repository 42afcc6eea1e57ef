"""The grammar of an answer: its thoughts, its text, and the calls that it may or must make.

Calls are the format's own spelling around each tool's name and the schema of its arguments.
A marker that is a token of the model is required as that token. Knows the notation, but no
parser of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.errors import InvalidField
from serve_app.json_schema.lark import LarkError, in_json
from serve_app.json_schema.numerals import dumps
from serve_app.text.answer.grammar import form_of_schema
from serve_app.text.answer.reasoning import ReasoningFormat
from serve_app.text.answer.tools.format import Spelling
from serve_app.types import Grammar, GrammarKind

FIELD: Final = "tools"  # as the replica calls it

_TEXT: Final = r"/(.|\n)*/"  # no control token is part of it
_BLANKS: Final = r"/[ \n]{0,4}/"
# With one of these, arguments may have members though `properties` has none.
_OPEN: Final = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if")


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """The thoughts that an answer may begin with; `opened`: the prompt has already opened them."""

    format: ReasoningFormat
    opened: bool
    most: int | None = None  # tokens; None: as many as it likes

    def can_be_limited(self, token_ids: Mapping[str, int]) -> bool:
        """Whether a grammar sees where they begin and end. `token_ids`: of the markers that are tokens."""
        return self.format.close in token_ids and (self.opened or self.format.open in token_ids)


@dataclass(frozen=True, slots=True)
class CallRules:
    """Calls of `functions`, each with a name, parameters and perhaps `strict`.

    One with a `format` has one parameter, a text that matches its grammar in Lark's notation.
    """

    spelling: Spelling
    functions: Sequence[Mapping[str, Any]]  # at least one
    several: bool  # more than one call
    forced: bool  # there must be a call
    space: str  # a regex of what may stand between tokens of their arguments


def answer_grammar(
    token_ids: Mapping[str, int],
    *,
    thoughts: ThinkingRules | None = None,
    form: str | None = None,
    calls: CallRules | None = None,
) -> Grammar:
    """The grammar of a whole answer. `token_ids` are those of the markers that are tokens.

    Unless calls are forced, the answer may be text, in the JSON `form` if there is one. Text may then
    precede calls too, but only if the first call begins with a token. With thoughts alone, the rest is free.
    """
    said = "TEXT" if form is None else form
    if thoughts is not None and form is None and calls is None:
        said = _free(thoughts, token_ids)
    rules = [f"said: {said}", f"TEXT: {_TEXT}"]
    answer = "said"
    if calls is not None:
        rules += _call_rules(calls, token_ids)
        answer = "calls" if calls.forced else "TEXT calls?" if form is None else "(said | calls)"
    if thoughts is not None:
        rules += _thought_rules(thoughts, token_ids)
        answer = f"thoughts {answer}"
    return Grammar(kind=GrammarKind.LARK, text="\n".join(["%llguidance {}", f"start: {answer}", *rules, ""]))


def _call_rules(calls: CallRules, token_ids: Mapping[str, int]) -> list[str]:
    spelling = calls.spelling
    more = f" ({_terms(spelling.between, token_ids)} call)*" if calls.several else ""
    rules = [f"calls: {_terms(spelling.first, token_ids)} call{more} {_terms(spelling.last, token_ids)}"]
    for i, function in enumerate(calls.functions):
        before = _terms(f"{spelling.name}{function['name']}{spelling.arguments}", token_ids)
        rules.append(f"call_{i}: {before} arguments_{i} {_terms(spelling.end, token_ids)}")
        rules += _argument_rules(function, calls.space, f"arguments_{i}")
    return [*rules, "call: " + " | ".join(f"call_{i}" for i in range(len(calls.functions)))]


def call_grammar(function: Mapping[str, Any], space: str) -> Grammar:
    """The grammar of the arguments of a call by themselves. Raises InvalidField."""
    if "format" not in function:
        return Grammar(kind=GrammarKind.SCHEMA, text=dumps(arguments(function["parameters"])), space=space)
    rules = ["%llguidance {}", "start: arguments", *_argument_rules(function, space, "arguments")]
    return Grammar(kind=GrammarKind.LARK, text="\n".join(rules))


def _argument_rules(function: Mapping[str, Any], space: str, name: str) -> list[str]:
    """The rule `name` of the arguments of a call, and those it needs. Raises InvalidField."""
    try:
        if "format" not in function:
            return [f"{name}: {form_of_schema(arguments(function['parameters']), space)}"]
        text = in_json(function["format"]["definition"], f"{name}_text")
    except LarkError as error:
        raise of_tool(function["name"], InvalidField(FIELD, str(error))) from None
    except InvalidField as error:
        raise of_tool(function["name"], error) from error
    (parameter,) = function["parameters"]["properties"]
    pattern = space.replace("/", r"\/")
    blank = f" /{pattern}/ " if space else " "
    key = json.dumps(json.dumps(parameter))
    return [f"{name}: " + blank.join(('"{"', key, '":"', f'"\\"" {name}_text "\\""', '"}"')), *text]


def of_tool(name: str, error: InvalidField) -> InvalidField:
    """The error about a tool's schema, with the name of the tool."""
    return InvalidField(FIELD, f'tool "{name}": {error.reason}')


def arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call's arguments: an object, without members where none are declared."""
    schema = {"type": "object", **parameters}
    if not schema.get("properties") and not any(key in parameters for key in _OPEN):
        schema["additionalProperties"] = False
    return schema


def _thought_rules(thoughts: ThinkingRules, token_ids: Mapping[str, int]) -> list[str]:
    open, close = thoughts.format.open, thoughts.format.close
    if close not in token_ids:
        inside, ends = "thought", f"suffix={json.dumps(close)}"
    elif thoughts.most is None:
        inside, ends = f"TEXT {_terms(close, token_ids)}", ""
    else:
        inside = ("thought " if thoughts.most else "") + _terms(close, token_ids)
        ends = f"max_tokens={thoughts.most}" if thoughts.most else ""
    rule = f"{inside} {_BLANKS}" if thoughts.opened else f"({_terms(open, token_ids)} {inside} {_BLANKS})?"
    return [f"thoughts: {rule}", *([f"thought[{ends}]: {_TEXT}"] if ends else [])]


def _free(thoughts: ThinkingRules, token_ids: Mapping[str, int]) -> str:
    """Any tokens but the one that would open thoughts again."""
    open = thoughts.format.open
    return f"<[^{token_ids[open]}]>*" if open in token_ids else "<[*]>*"


def _terms(text: str, token_ids: Mapping[str, int]) -> str:
    """`text` as terms of the notation: its markers as tokens, all else as literals."""
    pattern = "|".join(map(re.escape, token_ids))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    return " ".join(f"<[{token_ids[p]}]>" if p in token_ids else json.dumps(p) for p in parts if p)
