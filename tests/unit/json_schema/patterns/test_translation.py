"""Patterns as clients write them, enforced by the real parser; what is left out is told."""

import random
import re
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from serve_app.json_schema import UnusableSchema, adapt
from serve_app.json_schema.patterns import PatternError, translate
from serve_app.json_schema.patterns.classes import NAMES
from tests.support.schema_answers import accepts, matcher, walk

# zod's addresses and pydantic's decimals
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


def text(pattern: str, **beside: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **beside}


# pattern -> texts that match it; texts that do not
EXACT: dict[str, tuple[list[str], list[str]]] = {
    "a&&b": (["xa&&by"], ["ab", "a&b"]),
    "^[a&&b]{2}$": (["ab", "&a"], ["c", "ac"]),
    "^[+--]$": (["+", ",", "-"], ["."]),
    "^[a~~b]$": (["~"], ["^"]),
    "^[[]$": (["["], ["", "]"]),
    r"^[[\]]+$": (["[]"], ["x"]),
    "^[]-a]$": ([], ["a", "]"]),
    "^[^]$": (["a", "\n", "😀"], ["", "ab"]),
    r"^[\b]$": (["\b"], ["b"]),
    r"^[\w.-]+$": (["a-b.c_1"], ["a b", "é"]),
    r"^[\d-x]$": (["1", "-", "x"], ["5-x", "m"]),
    r"^[^\W\d]$": (["a", "_"], ["1", " ", "é"]),
    r"^\d\D\s\S$": (["1a b", "1x\u3000y"], ["1a\ufeffb", "aa b", "1a\x85b"]),
    r"^\w\W$": (["a!", "a "], ["ab", "aé"]),
    r"^.$": (["x", "é", "😀"], ["\n", "\r", "\u2028", ""]),
    r"\/x\/": (["a/x/b"], ["x"]),
    r"^\cJ\t\v\f\x41\u0042\u{43}\0$": (["\n\t\v\fABC\0"], ["cJ"]),
    r"^\u{1F600}\uD83D\uDE00$": (["😀😀"], ["😀"]),
    r"^\-\_\.\@\"$": (['-_.@"'], ["a"]),
    r"^(?<year>\d{4})-(?:\d{2})$": (["2024-02"], ["2024"]),
    r"^(?P<stop>a)b$": (["ab"], ["a", "b"]),
    r"(^a$)|(^b$)": (["a", "b"], ["ab", "aa"]),
    r"^(^a$|^b$)$": (["a", "b"], ["ab"]),
    r"^(?:a|b$)": (["ax", "b"], ["bx", "c"]),
    r"(?:^|,)a(?:,|$)": (["a", "b,a", "a,b", "b,a,c"], ["ba", "ab"]),
    r"^(?:^a)?b": (["ab", "b"], ["xb"]),
    r"^a{,3}$": (["", "aaa"], ["aaaa"]),
    r"^a{2,}b{1}c{0,1}d?e*?$": (["aab", "aaabcdee"], ["ab", "aabb"]),
    r"^x{$": (["x{"], ["x"]),
    r"^}{1,2}]$": (["}]", "}}]"], ["]"]),
    r"^(?i)abc$": (["ABC", "aBc"], ["abd"]),
    r"^a(?i:b)c$": (["aBc", "abc"], ["Abc"]),
    r"^(?s:.)$": (["\n"], [""]),
    r"\Aab\Z": (["ab"], ["xab", "abx"]),
    r"^\p{Lu}\p{Script=Greek}\P{L}\pN$": (["Aα-1"], ["aα-1", "Aa-1"]),
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{4,8}$": (["aA1x"], ["aaaa", "aA1", "aA1aA1aA1"]),
    r"^(?=.{3}$)a*b*$": (["aab", "abb"], ["ab", "aabb"]),
    "": (["", "x"], []),
    "^": (["", "x"], []),
    "^$": ([""], ["x"]),
    "(a|b|)": (["", "x"], []),
    "ü😀": (["xü😀"], ["u"]),
}


@pytest.mark.parametrize("pattern", EXACT)
def test_a_pattern_is_enforced(pattern: str) -> None:
    good, bad = EXACT[pattern]
    schema = text(pattern)
    assert adapt(schema).lost == ()
    assert [value for value in good if not accepts(schema, value)] == []
    if good:  # else no text matches it, which the parser says
        assert [value for value in bad if accepts(schema, value)] == []


# pattern -> a text that matches it; a text that is still not let through
INEXACT: dict[str, tuple[str, str]] = {
    EMAIL: ("a.b@example.org", "example.org"),
    DECIMAL: ("-12.50", "1,5"),
    r"^\bfoo\b$": ("foo", "bar"),
    r"^\Bfoo": ("foo", "bar"),
    r"^(?<!x)foo$": ("foo", "bar"),
    r"^foo(?=bar)bar$": ("foobar", "foo"),
    r"^(a|b)\1$": ("aa", "ac"),
    r"""^(?<q>["'])\w+\k<q>$""": ("'x'", "x"),
    r"^(?P<q>a)(?P=q)$": ("aa", "b"),
    r"^a++b$": ("aab", "b"),
    r"^(?>ab)c$": ("abc", "c"),
    r"x*^b": ("b", "c"),
    r"(?m)^b$": ("b", "c"),
    r"^(^a)*b$": ("ab", "c"),
}


@pytest.mark.parametrize("pattern", INEXACT)
def test_what_is_no_regular_expression_is_left_out_and_named(pattern: str) -> None:
    good, bad = INEXACT[pattern]
    schema = {"type": "object", "properties": {"e": text(pattern)}, "required": ["e"]}
    assert adapt(schema).lost == ("properties.e.pattern",)
    assert accepts(schema, {"e": good})
    assert not accepts(schema, {"e": bad})


@pytest.mark.parametrize(
    "pattern", [r"\h+", r"^\Qa.b\E$", r"(?x) a b", r"^(a)?(?(1)b|c)$", r"\p{InGreek}", r"a\K"]
)
def test_the_syntax_of_other_dialects_is_let_through_and_named(pattern: str) -> None:
    assert adapt(text(pattern)).lost == ("pattern",)
    assert accepts(text(pattern), "anything")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "(?:a",
        "[a",
        "[b-a]",
        "*a",
        "a**",
        "a|+",
        "a{3,2}",
        "\\",
        "a\\",
        r"\u{110000}",
        "a{9999999999}",
        "(" * 999,
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(PatternError):
        translate(pattern)
    for keyword, place in (("pattern", "pattern"), ("patternProperties", f"patternProperties.{pattern}")):
        schema = {"properties": {"e": {keyword: pattern if keyword == "pattern" else {pattern: {}}}}}
        with pytest.raises(UnusableSchema, match=re.escape(f"$.properties.e.{place}"[:200])):
            adapt(schema)


def test_every_property_of_characters_is_known_to_the_parser() -> None:
    for name in NAMES:
        matcher(text(rf"^\p{{{name}}}\P{{{name}}}?$"))


def test_a_group_is_never_the_parsers_own_look_ahead() -> None:
    written = translate(r"^(?P<stop>a)(?<stop>b)$").patterns
    assert written == ("^ab$",)


DATES: dict[str, tuple[str, str]] = {
    "date": (
        "2024-02-29 2000-02-29 2023-02-28 0004-02-29 9999-12-31 0001-01-01",
        "2023-02-29 1900-02-29 2100-02-29 2024-02-30 2024-04-31 0000-01-01 0000-02-29 2024-13-01 2024-1-1",
    ),
    "date-time": (
        "2024-02-29T23:59:59Z 2023-01-01T00:00:00.125+05:30",
        "2023-02-29T00:00:00Z 2024-01-01T24:00:00Z 2024-01-01T00:00:60Z 2024-01-01T00:00:00 2024-01-01",
    ),
    "time": ("00:00:00Z 23:59:59.5-08:00", "24:00:00Z 00:60:00Z 00:00:00"),
}


@pytest.mark.parametrize("format", DATES)
def test_dates_are_real(format: str) -> None:
    good, bad = (texts.split() for texts in DATES[format])
    schema = {"type": "string", "format": format}
    assert adapt(schema).lost == ()
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


def test_every_day_of_the_calendar_is_a_date_and_no_other() -> None:
    pattern = adapt({"format": "date"}).schema["pattern"]
    years = (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024)
    days = [f"{y:04}-{m:02}-{d:02}" for y in years for m in range(14) for d in range(33)]
    assert [day for day in days if bool(re.search(pattern, day)) != is_day(day)] == []


def is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def test_a_pattern_a_format_and_a_length_hold_together() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^202", "maxLength": 10}
    assert accepts(schema, "2024-02-29")
    assert not accepts(schema, "2034-02-28")
    assert not accepts(schema, "2023-02-29")
    impossible = text("^2023-02-29$", format="date")
    made = LLMatcher.grammar_from_json_schema(adapt(impossible).schema)
    assert LLMatcher.validate_grammar(made)  # an error: no text matches


# --- random patterns ---------------------------------------------------------------------------

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        r"\D",
        r"\W",
        "[ab]",
        "[^a]",
        r"[\w-]",
        r"[^\s]",
        r"[^\W]",
        "&",
        r"\.",
    ]
)


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=2).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(parts, st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "{1,}"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
        parts.map(lambda part: f"(?:^{part})"),
        parts.map(lambda part: f"(?:{part}$)"),
    )


@given(pattern=st.recursive(ATOMS, _joined, max_leaves=6), anchored=st.booleans(), seed=st.integers(0, 2**32))
def test_every_text_of_a_random_walk_matches(pattern: str, anchored: bool, seed: int) -> None:
    """By Python's own engine, which shares this part of the syntax."""
    schema = text(f"^{pattern}$" if anchored else pattern, maxLength=12)
    adapted = adapt(schema)
    if LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(adapted.schema)):
        return  # no text matches, as of `(?:a$)b`
    answer = walk(schema, random.Random(seed))
    if adapted.lost == () and answer is not None:
        assert re.search(schema["pattern"], answer)
