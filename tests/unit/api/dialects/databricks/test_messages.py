"""The order of messages against its grammar: every conversation of up to six messages."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

import pytest

from serve_app.api.dialects.databricks.messages import parse_messages
from serve_app.errors import InvalidField

# conversation := [system] user ( assistant user | calls tool+ [ assistant user ] )*
GRAMMAR: Final = re.compile(r"s?u(au|ct+(au)?)*")
CALL: Final = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "s": {"role": "system", "content": "x"},
    "u": {"role": "user", "content": "x"},
    "a": {"role": "assistant", "content": "x"},
    "c": {"role": "assistant", "tool_calls": [CALL]},
    "t": {"role": "tool", "content": "x", "tool_call_id": "c"},
}


def is_accepted(word: str) -> bool:
    try:
        return len(parse_messages([MESSAGES[letter] for letter in word])) == len(word)
    except InvalidField:
        return False


@pytest.mark.parametrize("length", range(1, 7))
def test_exactly_the_conversations_of_the_grammar_are_accepted(length: int) -> None:
    words = list(map("".join, itertools.product(MESSAGES, repeat=length)))
    accepted = {word for word in words if is_accepted(word)}
    assert accepted == {word for word in words if GRAMMAR.fullmatch(word)}
    assert accepted
