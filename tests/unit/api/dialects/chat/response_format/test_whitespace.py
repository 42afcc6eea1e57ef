"""A client's own regex of the whitespace in JSON."""

from typing import Any

import pytest
from llguidance import LLMatcher

from serve_app.api.dialects.chat.response_format.whitespace import parse_whitespace
from serve_app.errors import InvalidField


@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        ("", ""),
        (" ", r"[\x20]"),
        (" ?", r"[\x20]{0,1}"),
        (r"[\n\t ]*", r"[\x0A\x09\x20]{0,64}"),
        ("[\n\t ]*", r"[\x0A\x09\x20]{0,64}"),
        (r"\s+", r"[\x20\x0A\x09\x0D]{1,64}"),
        (r"\n?[ ]{2,4}", r"[\x0A]{0,1}[\x20]{2,4}"),
        (r"[ ]{3}", r"[\x20]{3,3}"),
        (r"[ ]{3,}", r"[\x20]{3,64}"),
        (r" {0,999}", r"[\x20]{0,64}"),
    ],
)
def test_blanks_are_bounded(given: str, bounded: str) -> None:
    assert parse_whitespace(given, "f") == bounded
    grammar = LLMatcher.grammar_from_json_schema({}, overrides={"whitespace_pattern": bounded})
    assert not LLMatcher.validate_grammar(grammar)


@pytest.mark.parametrize(
    "given",
    ["x", ".*", "[a ]", "( )*", "[ ]**", "[]", "[", " {65}", " {4,2}", " " * 9, 5, ["x"], "a" * 10_000],
)
def test_all_else_is_refused(given: Any) -> None:
    with pytest.raises(InvalidField, match=r"f: must be a regex of up to 8 blanks") as caught:
        parse_whitespace(given, "f")
    assert caught.value.param == "f"
