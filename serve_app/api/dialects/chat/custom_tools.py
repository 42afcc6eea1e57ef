"""Custom tools: called with a text, not with arguments as JSON.

The model is shown such a tool as a function with one string argument. Forced calls match its format: a
regular expression becomes the argument's `pattern`, and a Lark grammar becomes a member of the function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pydantic_core

from serve_app.errors import InvalidField
from serve_app.json_schema.lark import LarkError, in_json
from serve_app.limits import MAX_GRAMMAR_CHARS, MAX_REGEX_CHARS
from serve_app.types import ToolCallDelta, ToolChoice, ToolMode

CUSTOM: Final = "custom"
INPUT: Final = "input"  # the only argument, which is a text
REGEX: Final = "regex"
LARK: Final = "lark"
SYNTAXES: Final = (LARK, REGEX)
FORMAT: Final = "format"
_Placed = tuple[dict[str, Any], str]  # a custom tool with `name` and `format`, and where it lies


def function_of(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A custom tool, with `name`, `description` and `format`, as a function. Raises InvalidField."""
    syntax, definition, _ = _grammar_of(tool, where)
    text = {"type": "string"}
    if syntax == REGEX:
        text["pattern"] = f"^(?:{definition})$"
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}


def with_grammars(
    offered: tuple[dict[str, Any], ...], customs: Sequence[_Placed]
) -> tuple[dict[str, Any], ...]:
    """The tools `offered`, where each tool in `customs` has its grammar as a member. Raises InvalidField."""
    grammars: dict[str, dict[str, Any]] = {}
    for tool, where in customs:
        syntax, definition, _ = _grammar_of(tool, where)
        if syntax == LARK:
            grammars[tool["name"]] = {"type": "grammar", "syntax": LARK, "definition": definition}
    if sum(len(each["definition"]) for each in grammars.values()) > MAX_GRAMMAR_CHARS:
        raise InvalidField("tools", f"the grammars may have {MAX_GRAMMAR_CHARS} characters together")
    functions = [tool["function"] for tool in offered]
    return tuple(
        {
            "type": "function",
            "function": {**each, FORMAT: grammars[each["name"]]} if each["name"] in grammars else each,
        }
        for each in functions
    )


def ignored_formats(customs: Sequence[_Placed], choice: ToolChoice) -> list[str]:
    """The places of the formats that are not enforced in calls.

    Raises InvalidField for a grammar that cannot be enforced in a forced call.
    """
    is_forced = choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED)
    ignored: list[str] = []
    for tool, where in customs:
        syntax, definition, at = _grammar_of(tool, where)
        if syntax and not is_forced:
            ignored.append(f"{where}.format")
        elif syntax == LARK and choice.name in (None, tool["name"]):
            try:
                in_json(definition, CUSTOM)
            except LarkError as error:
                raise InvalidField(at, f'tool "{tool["name"]}": {error}') from None
    return ignored


def text_of(arguments: str) -> str:
    """The text for a custom tool, read from the call's arguments, whose JSON may be cut off."""
    try:
        value = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


class HeldCalls:
    """Holds back the calls of custom tools in streams until each call is complete."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held: dict[tuple[int, int], list[str]] = {}  # a choice and a call of it -> its arguments so far

    def takes(self, choice: int, piece: ToolCallDelta) -> bool:
        """Hold back the piece if it belongs to a call of a custom tool; returns whether it does."""
        place = choice, piece.index
        if piece.name in self._names:
            self._held[place] = []
        if (fragments := self._held.get(place)) is None:
            return False
        fragments.append(piece.arguments)
        return True

    def ended(self, choice: int, but: int | None = None) -> Iterator[tuple[int, str]]:
        """The numbers and texts of a choice's held calls, except call number `but`, which has not ended."""
        for place in [each for each in self._held if each[0] == choice and each[1] != but]:
            yield place[1], text_of("".join(self._held.pop(place)))


def _grammar_of(tool: dict[str, Any], where: str) -> tuple[str, str, str]:
    """The syntax and the definition in a format, and the latter's place; an empty syntax means any text.

    In chats, syntax and definition lie below `grammar`; in responses, beside `type`. Raises InvalidField.
    """
    form = tool.get(FORMAT)
    if form is None:
        return "", "", ""
    at = f"{where}.format"
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise InvalidField(f"{at}.type", "must be text or grammar")
    if form["type"] == "text":
        return "", "", ""
    grammar = form.get("grammar", form)
    at = f"{at}.grammar" if "grammar" in form else at
    if not isinstance(grammar, dict) or grammar.get("syntax") not in SYNTAXES:
        raise InvalidField(f"{at}.syntax", f"must be {' or '.join(SYNTAXES)}")
    syntax, definition = grammar["syntax"], grammar.get("definition")
    most = MAX_REGEX_CHARS if syntax == REGEX else MAX_GRAMMAR_CHARS
    if not isinstance(definition, str) or not 1 <= len(definition) <= most:
        raise InvalidField(f"{at}.definition", f"must be a string of 1 to {most} characters")
    return syntax, definition, f"{at}.definition"
