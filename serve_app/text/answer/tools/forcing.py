"""The grammar of an answer: its thoughts, its text, and the calls that it may or must make.

A call is the format's own spelling around the tool's name and the schema of its arguments. A marker that is a
token of the model is required as that token. Writes the notation, but does not use a parser for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.errors import InvalidField
from serve_app.json_schema.lark import LarkError, in_json
from serve_app.json_schema.numerals import dumps
from serve_app.text.answer.grammar import ANY_TEXT, form_of_schema, terms
from serve_app.text.answer.thinking_budget import ThinkingRules
from serve_app.text.answer.tools.format import Spelling
from serve_app.types import Grammar, GrammarKind

FIELD: Final = "tools"  # as the replica calls it

# With one of these, arguments may have members though `properties` has none.
_OPEN: Final = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if")


@dataclass(frozen=True, slots=True)
class CallRules:
    """Calls of `functions`, each with a name, parameters and perhaps `strict`.

    A function with a `format` has one parameter, a text that matches its grammar in Lark's notation.
    """

    spelling: Spelling
    functions: Sequence[Mapping[str, Any]]  # at least one
    several: bool  # more than one call
    forced: bool  # there must be a call
    space: str  # a regex of what is allowed between tokens of their arguments


def answer_grammar(
    token_ids: Mapping[str, int],
    *,
    thoughts: ThinkingRules | None = None,
    form: str | None = None,
    calls: CallRules | None = None,
) -> Grammar:
    """The grammar of a whole answer. `token_ids` are the ids of the markers that are tokens.

    Unless calls are forced, the answer may be text, in the JSON `form` if there is one. Text may then precede
    calls too, but only if the first call begins with a token. If only `thoughts` is set, the rest is free.
    """
    said = "TEXT" if form is None else form
    if thoughts is not None and form is None and calls is None:
        said = thoughts.free(token_ids)
    rules = [f"said: {said}", f"TEXT: {ANY_TEXT}"]
    answer = "said"
    if calls is not None:
        rules += _call_rules(calls, token_ids)
        answer = "calls" if calls.forced else "TEXT calls?" if form is None else "(said | calls)"
    if thoughts is not None:
        rules += thoughts.rules(token_ids)
        answer = f"thoughts {answer}"
    return Grammar(kind=GrammarKind.LARK, text="\n".join(["%llguidance {}", f"start: {answer}", *rules, ""]))


def _call_rules(calls: CallRules, token_ids: Mapping[str, int]) -> list[str]:
    spelling = calls.spelling
    more = f" ({terms(spelling.between, token_ids)} call)*" if calls.several else ""
    rules = [f"calls: {terms(spelling.first, token_ids)} call{more} {terms(spelling.last, token_ids)}"]
    for i, function in enumerate(calls.functions):
        before = terms(f"{spelling.name}{function['name']}{spelling.arguments}", token_ids)
        rules.append(f"call_{i}: {before} arguments_{i} {terms(spelling.end, token_ids)}")
        rules += _argument_rules(function, calls.space, f"arguments_{i}")
    return [*rules, "call: " + " | ".join(f"call_{i}" for i in range(len(calls.functions)))]


def call_grammar(function: Mapping[str, Any], space: str) -> Grammar:
    """The grammar for the arguments of a call, without the call around them. Raises InvalidField."""
    if "format" not in function:
        return Grammar(kind=GrammarKind.SCHEMA, text=dumps(arguments(function["parameters"])), space=space)
    rules = ["%llguidance {}", "start: arguments", *_argument_rules(function, space, "arguments")]
    return Grammar(kind=GrammarKind.LARK, text="\n".join(rules))


def _argument_rules(function: Mapping[str, Any], space: str, name: str) -> list[str]:
    """The rule `name` for the arguments of a call, and the rules it needs. Raises InvalidField."""
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
    """The schema of a call's arguments: an object, which has no members if none are declared."""
    schema = {"type": "object", **parameters}
    if not schema.get("properties") and not any(key in parameters for key in _OPEN):
        schema["additionalProperties"] = False
    return schema
