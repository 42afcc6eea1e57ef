"""Custom tools: called with a text, not with arguments as JSON.

To the model such a tool is a function of one text. A format that is a regular expression becomes a pattern
of the text, which forced calls match. One in Lark's notation cannot be a rule within JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import pydantic_core

from serve_app.errors import InvalidField
from serve_app.limits import MAX_GRAMMAR_CHARS, MAX_REGEX_CHARS
from serve_app.types import ToolCallDelta, ToolChoice, ToolMode

CUSTOM: Final = "custom"
INPUT: Final = "input"  # the only argument, which is a text
REGEX: Final = "regex"
SYNTAXES: Final = ("lark", REGEX)


def function_of(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A custom tool, with `name`, `description` and `format`, as a function. Raises InvalidField."""
    grammar = _grammar_of(tool, where)
    text = {"type": "string"}
    if grammar is not None and grammar["syntax"] == REGEX:
        text["pattern"] = f"^(?:{grammar['definition']})$"
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}


def is_followed(tool: dict[str, Any], choice: ToolChoice) -> bool:
    """Whether calls of a checked custom tool are made to match its format."""
    grammar = _grammar_of(tool, "")
    if grammar is None:
        return True
    is_forced = choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED)
    return grammar["syntax"] == REGEX and is_forced


def text_of(arguments: str) -> str:
    """What a custom tool is called with, out of the JSON of a call's arguments; it may have been cut."""
    try:
        value = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


class HeldCalls:
    """Calls of custom tools in the streams of some choices: their text is known once a call is whole."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held: dict[tuple[int, int], list[str]] = {}  # a choice and a call of it -> its arguments so far

    def takes(self, choice: int, piece: ToolCallDelta) -> bool:
        """Whether the piece belongs to such a call. It is held."""
        place = choice, piece.index
        if piece.name in self._names:
            self._held[place] = []
        if (fragments := self._held.get(place)) is None:
            return False
        fragments.append(piece.arguments)
        return True

    def ended(self, choice: int, but: int | None = None) -> Iterator[tuple[int, str]]:
        """The calls of a choice that are whole: numbers and texts. `but`: the one that goes on."""
        for place in [each for each in self._held if each[0] == choice and each[1] != but]:
            yield place[1], text_of("".join(self._held.pop(place)))


def _grammar_of(tool: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The syntax and the definition of a format; None: any text.

    In chats both lie below `grammar`, in responses beside `type`. Raises InvalidField.
    """
    form = tool.get("format")
    if form is None:
        return None
    at = f"{where}.format"
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise InvalidField(f"{at}.type", "must be text or grammar")
    if form["type"] == "text":
        return None
    grammar = form.get("grammar", form)
    at = f"{at}.grammar" if "grammar" in form else at
    if not isinstance(grammar, dict) or grammar.get("syntax") not in SYNTAXES:
        raise InvalidField(f"{at}.syntax", f"must be {' or '.join(SYNTAXES)}")
    most = MAX_REGEX_CHARS if grammar["syntax"] == REGEX else MAX_GRAMMAR_CHARS
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not 1 <= len(definition) <= most:
        raise InvalidField(f"{at}.definition", f"must be a string of 1 to {most} characters")
    return grammar
