"""Grammars of answers, tried with the parser they are written for over real tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.grammar.constraint import Constraint
from serve_app.errors import InvalidField
from serve_app.json_schema import SPACE
from serve_app.models.catalogue import demo_folder
from serve_app.text.answer.grammar import form_of, serialise
from serve_app.text.answer.reasoning import FORMATS as REASONING
from serve_app.text.answer.thinking_budget import ThinkingRules
from serve_app.text.answer.tools.detect import FORMATS
from serve_app.text.answer.tools.forcing import CallRules, answer_grammar, call_grammar
from serve_app.text.answer.tools.mistral import MISTRAL_ARGS
from serve_app.types import Grammar, GrammarKind

MARKERS = ("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city"],
    },
}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}
ALL = {**FORMATS, "mistral_args": MISTRAL_ARGS}
PATCH = {
    "name": "patch",
    "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: ("+" /(.*)/ "\\n")+ "\\"end\\""'},
}
OSLO = '{"city": "Oslo", "days": [1, 2]}'


@cache
def backend() -> tokenizers.Tokenizer:
    """Demo-chat's tokens, and the markers of others as special ones."""
    found = tokenizers.Tokenizer.from_file(str(demo_folder("demo-chat") / "tokenizer.json"))
    found.add_special_tokens(list(MARKERS))
    return found


@cache
def tokens() -> LLTokenizer:
    return LLTokenizer(backend().to_str(), eos_token=backend().token_to_id("<|im_end|>"))


def ids(*markers: str) -> Mapping[str, int]:
    known = backend().get_vocab()
    return {marker: known[marker] for marker in markers}


def matches(grammar: Grammar, answer: str) -> bool:
    """Whether the whole `answer`, as the model's own tokens, is one of the grammar's."""
    matcher = LLMatcher(tokens(), serialise(grammar))
    assert not matcher.is_error(), matcher.get_error()
    wanted = backend().encode(answer, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting())


def calls(format: str = "hermes", *functions: Any, several: bool = False, forced: bool = True) -> CallRules:
    return CallRules(ALL[format].spelling, functions or (WEATHER, NOW), several, forced, SPACE)


@pytest.mark.parametrize(
    ("format", "one", "two"),
    [
        (
            "hermes",
            f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>',
            '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ),
        ("llama3", f'{{"name": "get_weather", "parameters": {OSLO}}}', '; {"name": "now", "parameters": {}}'),
        ("mistral_args", f"[TOOL_CALLS]get_weather[ARGS]{OSLO}", "[TOOL_CALLS]now[ARGS]{}"),
    ],
)
def test_a_forced_answer_is_calls_and_nothing_else(format: str, one: str, two: str) -> None:
    markers = ids(*(token for token in ALL[format].tokens if backend().token_to_id(token) is not None))
    single = answer_grammar(markers, calls=calls(format))
    several = answer_grammar(markers, calls=calls(format, several=True))
    assert matches(single, one)
    assert matches(several, one)
    assert matches(several, one + two)
    for answer in (one + two, "Hello", "", "Well." + one, one.replace("get_weather", "get_time")):
        assert not matches(single, answer)
    assert not matches(several, one + one.replace("city", "town"))


@pytest.mark.parametrize("format", ["mistral", "json"])
def test_lists_of_calls(format: str) -> None:
    first = "[TOOL_CALLS] " if format == "mistral" else ""
    one = f'{{"name": "get_weather", "arguments": {OSLO}}}'
    grammar = answer_grammar(ids("[TOOL_CALLS]"), calls=calls(format, several=True))
    assert matches(grammar, f"{first}[{one}]")
    assert matches(grammar, f"{first}[{one}, {one}]")
    assert not matches(grammar, f"{first}[]")


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        (WEATHER["parameters"], ['{"city": "x"}'], ["{}", '{"city": 1}', '{"city": "x", "other": 1}', "[]"]),
        ({}, ["{}"], ['{"a": 1}']),
        (
            {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": ["b"]}}},
            ['{"a": "b"}'],
            ['{"a": "c"}'],
        ),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a": 1}'], ["{}"]),
        ({"additionalProperties": {"type": "integer"}}, ['{"a": 1}', "{}"], ['{"a": "b"}']),
        (
            {"properties": {"a": {"type": "integer"}}, "x-guidance": {"whitespace_flexible": True}},
            ['{"a": 1}', '{\n  "a": 1\n}'],
            ['{"a":' + " " * 33 + "1}"],
        ),
    ],
)
def test_arguments_follow_their_schema(parameters: dict[str, Any], good: list[str], bad: list[str]) -> None:
    function = {"name": "f", "parameters": parameters}
    grammar = answer_grammar({}, calls=calls("llama3", function))
    for text in good:
        assert matches(grammar, f'{{"name": "f", "parameters": {text}}}'), text
    for text in bad:
        assert not matches(grammar, f'{{"name": "f", "parameters": {text}}}'), text


def test_text_or_calls() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    markers = ids("<tool_call>", "</tool_call>")
    grammar = answer_grammar(markers, calls=calls(forced=False))
    for answer in ("", "Hello, {world}.\n", call, "Let me see.\n" + call):
        assert matches(grammar, answer)
    for answer in (call.replace("now", "then"), call + call, "<tool_call>"):
        assert not matches(grammar, answer)


def test_a_schema_or_calls() -> None:
    schema = form_of(Grammar(kind=GrammarKind.SCHEMA, text='{"type": "array", "items": {"type": "integer"}}'))
    grammar = answer_grammar({}, form=schema, calls=calls("llama3", forced=False))
    assert matches(grammar, "[1, 2]")
    assert matches(grammar, '{"name": "now", "parameters": {}}')
    assert not matches(grammar, "Hello")
    anything = form_of(Grammar(kind=GrammarKind.JSON))
    assert matches(answer_grammar({}, form=anything), '{"a": [1, {}]}')
    assert not matches(answer_grammar({}, form=anything), "[]")


@pytest.mark.parametrize("as_tokens", [True, False])
def test_thoughts_come_first(as_tokens: bool) -> None:
    format = REASONING["think"] if as_tokens else REASONING["magistral"]
    markers = ids(*format.tokens) if as_tokens else {}
    call = '{"name": "now", "parameters": {}}'
    thought = f"Hm, {{or}} <b>?\n{format.close}"
    for opened, before in ((True, ""), (False, format.open + "\n")):
        grammar = answer_grammar(markers, thoughts=ThinkingRules(format, opened), calls=calls("llama3"))
        assert matches(grammar, before + thought + call)
        assert matches(grammar, f"{before}{thought}\n\n{call}")
        assert not matches(grammar, f"{before}{thought}Hello")
        assert matches(grammar, call) is not opened


def forced_after(grammar: Grammar, answer: str) -> str | None:
    """What must follow the beginning of an answer, as text; None: it may not begin so."""
    matcher = LLMatcher(tokens(), serialise(grammar))
    assert not matcher.is_error(), matcher.get_error()
    wanted = backend().encode(answer, add_special_tokens=False).ids
    if matcher.try_consume_tokens(wanted) < len(wanted):
        return None
    return str(backend().decode(matcher.compute_ff_tokens(), skip_special_tokens=False))


@pytest.mark.parametrize("opened", [True, False])
def test_thoughts_end_after_so_many_tokens(opened: bool) -> None:
    """What comes behind is free, whatever tokens it has; thoughts do not begin once more."""
    format = REASONING["think"]
    before, thought = "" if opened else format.open, " a b a"
    assert len(backend().encode(thought, add_special_tokens=False).ids) == 3
    grammar = answer_grammar(ids(*format.tokens), thoughts=ThinkingRules(format, opened, most=3))
    assert forced_after(grammar, before + thought) == format.close
    assert forced_after(grammar, f"{before} a b") == ""
    assert forced_after(grammar, f"{before}{thought} b") is None
    for said in ("", "\n\nHello, {world}.\n", " a b a b a b", "[TOOL_CALLS]f[ARGS]{}"):
        for thoughts in (" a", thought):
            assert matches(grammar, f"{before}{thoughts}{format.close}{said}"), said
        assert matches(grammar, said) is not opened
    assert not matches(grammar, f"{before} a{format.close}Well, {format.open} b{format.close}")


@pytest.mark.parametrize("count", range(4))
def test_thoughts_that_another_engine_began_are_counted_from_their_beginning(count: int) -> None:
    format = REASONING["think"]
    grammar = answer_grammar(ids(*format.tokens), thoughts=ThinkingRules(format, opened=True, most=3))
    begun = backend().encode(" a b a", add_special_tokens=False).ids
    moved = Constraint.compile(serialise(grammar), tokens()).go_on(begun[:count], forces=False)
    for length in range(count, 3):
        assert moved.forced(begun[:length]) == []
    assert moved.forced(begun)[:1] == [ids(format.close)[format.close]]


@pytest.mark.parametrize("opened", [True, False])
def test_no_tokens_of_thoughts_close_them_at_once(opened: bool) -> None:
    format = REASONING["think"]
    grammar = answer_grammar(ids(*format.tokens), thoughts=ThinkingRules(format, opened, most=0))
    assert forced_after(grammar, "" if opened else format.open) == format.close
    assert matches(grammar, ("" if opened else format.open) + f"{format.close}Hello")


def test_limited_thoughts_stand_before_a_schema_and_before_calls() -> None:
    format = REASONING["think"]
    markers, schema = ids(*format.tokens), form_of(Grammar(kind=GrammarKind.JSON))
    limited = ThinkingRules(format, opened=True, most=3)
    for grammar, said in (
        (answer_grammar(markers, thoughts=limited, form=schema), '{"a": 1}'),
        (
            answer_grammar(markers, thoughts=limited, calls=calls("llama3")),
            '{"name": "now", "parameters": {}}',
        ),
    ):
        assert matches(grammar, f" a b a{format.close}\n{said}")
        assert forced_after(grammar, " a b a") == format.close
        assert not matches(grammar, f" a b a{format.close}\nHello")


def test_thoughts_are_limited_where_their_markers_are_tokens() -> None:
    format = REASONING["magistral"]
    for opened, known, can in (
        (False, format.tokens, True),
        (True, (format.close,), True),
        (False, (format.close,), False),
        (True, (format.open,), False),
        (True, (), False),
    ):
        rules = ThinkingRules(format, opened, most=3)
        assert rules.can_be_limited({token: i for i, token in enumerate(known)}) is can


@pytest.mark.parametrize("space", [SPACE, ""])
@pytest.mark.parametrize("functions", [(PATCH,), (WEATHER, PATCH, {**PATCH, "name": "other"})])
def test_a_text_matches_its_grammar(space: str, functions: tuple[Any, ...]) -> None:
    rules = replace(calls("hermes", *functions, several=True), space=space)
    grammar = answer_grammar(ids("<tool_call>", "</tool_call>"), calls=rules)
    alone = call_grammar(PATCH, space)

    def call(text: str, name: str = "patch") -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments(text)}}}\n</tool_call>'

    def arguments(text: str) -> str:
        gap = " " if space else ""
        return f'{{"input":{gap}{json.dumps(text, ensure_ascii=False)}}}'

    for text, is_good in (
        ('+a "b" \\\n"end"', True),
        ('+\n+é\t\n"end"', True),
        ('"end"', False),
        ('+a\n"end', False),
        ("+a", False),
    ):
        assert matches(grammar, call(text)) is is_good
        assert matches(alone, arguments(text)) is is_good
    assert matches(grammar, "\n".join([call('+\n"end"')] * 2))
    assert matches(grammar, call('+\n"end"', "other")) is (len(functions) > 1)


def test_a_grammar_that_cannot_be_read_is_an_error_of_its_tool() -> None:
    with pytest.raises(InvalidField, match='tool "patch": line 1: there is no rule x'):
        call_grammar({**PATCH, "format": {"definition": "start: x"}}, SPACE)
