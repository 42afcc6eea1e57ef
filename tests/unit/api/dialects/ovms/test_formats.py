"""Formats of OpenVINO Model Server's `response_format`, with the real parser: what may be answered."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from serve_app.api.dialects.ovms.formats import MAX_DEPTH, MAX_PARTS, parse_response_format
from serve_app.engine.grammar.constraint import LIMITS
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.errors import InvalidField
from serve_app.text.answer.grammar import serialise
from tests.support.tiny_llama import tiny_tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
BYE = {"type": "const_string", "value": "\n\nYou're welcome!"}
DIGITS = {"type": "regex", "pattern": r"\d{2}/\d{2}"}
TEXT = {"type": "any_text"}


def tag(begin: str = "<a>", end: str = "</a>", content: Any = DIGITS) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def tags(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "tags": [tag(), tag("<b>", "</b>", TEXT)], **fields}


def triggered(**fields: Any) -> dict[str, Any]:
    return tags("triggered_tags", **{"triggers": ["<a", "<b>"], **fields})


@cache
def tokens() -> LLTokenizer:
    backend = tiny_tokenizer().backend_tokenizer
    size = backend.get_vocab_size()
    return grammar_tokenizer(backend.to_str(), vocab_size=384, own_vocab_size=size, eos_token_ids=[2])


def accepts(value: Any, text: str) -> bool:
    grammar = parse_response_format(value).grammar
    assert grammar is not None
    made = LLMatcher(tokens(), serialise(grammar), log_level=0, limits=LIMITS)
    assert not made.is_error(), made.get_error()
    ids = tokens().tokenize_str(text)
    return bool(made.try_consume_tokens(ids) == len(ids) and made.is_accepting())


# a format, answers that match it, answers that do not
FORMATS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "const_string": (BYE, [BYE["value"]], ["", "You're welcome!", BYE["value"] + "!"]),
    "an empty const_string": ({"type": "const_string", "value": ""}, [""], ["x"]),
    "regex": (DIGITS, ["01/02"], ["1/2", "01/02 "]),
    "any_text": (TEXT, ["", "all of it,\nand <a> more"], []),
    "grammar in Lark's notation": (
        {"type": "grammar", "grammar": 'start: "a" b\nb: "c" | "d"'},
        ["ac", "ad"],
        ["a", "ab"],
    ),
    "grammar in GBNF": ({"type": "grammar", "grammar": 'root ::= "a" [0-9]'}, ["a1"], ["a", "1"]),
    "json_schema of the format": (
        {"type": "json_schema", "json_schema": PERSON},
        ['{"name": "Ann", "age": 5}'],
        ['{"name": "Ann"}'],
    ),
    "json_schema without a name": (
        {"type": "json_schema", "json_schema": {"schema": PERSON}},
        ['{"name": "Ann", "age": 5}'],
        ['{"age": 5}'],
    ),
    "sequence": (
        {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": PERSON}, BYE]},
        ['{"name": "Ann", "age": 20}' + BYE["value"]],
        ['{"name": "Ann", "age": 20}', BYE["value"]],
    ),
    "or": ({"type": "or", "elements": [BYE, DIGITS]}, [BYE["value"], "10/20"], ["", "10/20" + BYE["value"]]),
    "sequence of an or": (
        {"type": "sequence", "elements": [{"type": "or", "elements": [DIGITS, tag()]}, DIGITS]},
        ["01/0203/04", "<a>01/02</a>03/04"],
        ["01/02", "<a>01/02</a>"],
    ),
    "tag": (tag(), ["<a>01/02</a>"], ["<a>", "01/02", "<a></a>", "<a>01/02</a>."]),
    "tag of any_text": (
        tag(content=TEXT),
        ["<a></a>", "<a>x < y\n</a>"],
        ["<a>x", "<a></a>x", "<a></a></a>"],
    ),
    "tag without an end": (tag(end=""), ["<a>01/02"], ["<a>01/02</a>"]),
    "tag in a tag": (tag("<o>", "</o>", tag()), ["<o><a>01/02</a></o>"], ["<o>01/02</o>"]),
    "triggered_tags": (
        triggered(),
        ["", "no tag", "one <a>01/02</a> and <b>two</b>", "<a>01/02</a><a>03/04</a>."],
        ["<a>x</a>", "one <b>two", "<a no"],
    ),
    "triggered_tags, at_least_one": (
        triggered(at_least_one=True),
        ["<b></b>", "<a>01/02</a> and <b>two</b>."],
        ["", "no tag", "x<b></b>"],
    ),
    "triggered_tags, stop_after_first": (
        triggered(stop_after_first=True),
        ["", "no tag", "one <a>01/02</a>"],
        ["<a>01/02</a> and", "<b>"],
    ),
    "triggered_tags, one and no more": (
        triggered(at_least_one=True, stop_after_first=True),
        ["<a>01/02</a>"],
        ["", "<a>01/02</a><b></b>"],
    ),
    "tags_with_separator": (
        tags("tags_with_separator", separator=", "),
        ["", "<a>01/02</a>", "<a>01/02</a>, <b>x</b>, <b></b>"],
        ["<a>01/02</a>,", ", <b></b>", "<a>01/02</a><b></b>"],
    ),
    "tags_with_separator, at_least_one": (
        tags("tags_with_separator", separator=";", at_least_one=True),
        ["<b>x</b>;<b></b>"],
        ["", ";"],
    ),
    "tags_with_separator, stop_after_first": (
        tags("tags_with_separator", separator=";", stop_after_first=True),
        ["", "<b></b>"],
        ["<b></b>;<b></b>"],
    ),
    "structural_tag": ({"type": "structural_tag", "format": tag()}, ["<a>01/02</a>"], [""]),
}


@pytest.mark.parametrize(("value", "right", "wrong"), FORMATS.values(), ids=FORMATS.keys())
def test_answers_that_a_format_allows_and_others(
    value: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not accepts(value, text)] == []
    assert [text for text in wrong if accepts(value, text)] == []


def nested(depth: int) -> dict[str, Any]:
    return DIGITS if depth == 0 else {"type": "sequence", "elements": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"type": "xml"}, "type: must be one of: text, json_object, json_schema, const_string"),
        ({}, "response_format.type: must be one of"),
        ({"type": ["a"]}, "response_format.type: must be one of"),
        ({"type": "structural_tag"}, "response_format.type: must be one of"),
        ({"type": "const_string"}, "response_format.value: must be a string of up to"),
        ({"type": "regex", "pattern": ""}, "response_format.pattern: must be a string, not empty,"),
        ({"type": "sequence", "elements": []}, "response_format.elements: must be a list of 1 to 256"),
        ({"type": "sequence", "elements": [DIGITS, 5]}, "response_format.elements.1.type: must be one of"),
        (
            {"type": "sequence", "elements": [TEXT, BYE]},
            "response_format.elements.0: any_text must be the end",
        ),
        ({"type": "sequence", "elements": [triggered(), BYE]}, "elements.0: triggered_tags must be the end"),
        (tag(content=None), "response_format.content.type: must be one of"),
        (tag(begin=5), "response_format.begin: must be a string, not empty,"),
        (tag(end=None), "response_format.end: must be a string of"),
        (triggered(triggers=["<c"]), "response_format.tags.0.begin: must begin with one of the triggers"),
        (triggered(triggers=[""]), "response_format.triggers: must be a list of strings"),
        (triggered(at_least_one=1), "response_format.at_least_one: must be true or false"),
        (tags("tags_with_separator"), "response_format.separator: must be a string"),
        ({"type": "grammar", "grammar": "no grammar"}, "response_format.grammar: must be in Lark's notation"),
        (
            {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": []}]},
            "response_format.elements.0.json_schema: must be a JSON Schema",
        ),
        (nested(MAX_DEPTH + 1), f"at most {MAX_PARTS} formats, at most {MAX_DEPTH} inside"),
        (
            {"type": "or", "elements": [{"type": "or", "elements": [DIGITS] * 20}] * 20},
            f"at most {MAX_PARTS} formats",
        ),
    ],
)
def test_formats_that_are_refused_by_name(value: Any, told: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_response_format(value)
    assert told in caught.value.message
    assert caught.value.param == "response_format"


def test_keywords_that_are_not_enforced_are_named_with_their_place() -> None:
    odd = {"type": "array", "items": {}, "uniqueItems": True}
    form = parse_response_format(
        {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": odd}]}
    )
    assert form.ignored == ("response_format.elements.0.json_schema.uniqueItems",)


def test_the_deepest_format_is_taken() -> None:
    assert accepts(nested(MAX_DEPTH), "01/02")


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema", "json_schema": True},
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": True}},
    ],
)
def test_a_schema_that_is_true_takes_any_json(value: Any) -> None:
    assert accepts(value, '{"a": [1, null]}')
    assert not accepts(value, "a")
    with pytest.raises(InvalidField):
        parse_response_format({"type": "json_schema", "json_schema": False})
