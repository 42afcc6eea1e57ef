"""What a client asks of the output, in the parser's notation."""

import json
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.grammar.constraint import LIMITS
from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, control_tokens, grammar_tokenizer
from serve_app.errors import InvalidField
from serve_app.text.answer.grammar import reads_alike, serialise
from serve_app.text.answer.output_text import OutputText
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import Grammar, GrammarKind, MarkerRule
from tests.support.tiny_llama import tiny_tokenizer


@pytest.fixture(scope="module")
def tokens() -> LLTokenizer:
    backend = tiny_tokenizer().backend_tokenizer
    return grammar_tokenizer(
        backend.to_str(), vocab_size=384, own_vocab_size=backend.get_vocab_size(), eos_token_ids=[2]
    )


def accepts(tokens: LLTokenizer, grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(tokens, serialise(grammar), log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokens.tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def schema(value: Any) -> Grammar:
    return Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(value))


PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
DEEP = {"a": 1, "b": {"c": {"d": {"e": [{"f": ["x", 2]}]}}}}


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            Grammar(kind=GrammarKind.JSON),
            ['{"a": [1, {"b": null}]}', "{}", '{\n  "a": "ü"\n}'],
            ["[1]", '"a"', "{" + " " * 33 + "}", "{a: 1}", '{"a": 1} ', ' {"a": 1}'],
        ),
        (
            schema(PAIR),
            ['{"a":1}', '{"a":1,"b":[true]}', json.dumps(DEEP), json.dumps(DEEP, indent=4)],
            ['{"a":1,"c":2}', '{"b":1}', '{"a":"1"}', '{"a":' + " " * 33 + "1}", '{"a":1}\n'],
        ),
        (replace(schema(PAIR), space=""), ['{"a":1,"b":[true]}'], ['{"a": 1}', '{"a":1 }']),
        (replace(schema(PAIR), space=r"[\x20]{0,1}"), ['{"a": 1 }'], ['{"a":  1}', '{"a":\n1}']),
        (replace(Grammar(kind=GrammarKind.JSON), space=""), ['{"a":1}'], ['{"a": 1}']),
        (schema({**PAIR, "additionalProperties": True}), ['{"a":1,"c":2}'], ['{"c":2}']),
        (schema({}), ["1", '"x"', "[1, null]", '{"a":{}}'], ["", "x"]),
        (Grammar(kind=GrammarKind.SCHEMA, text="true"), ["1"], ["x"]),
        (schema({"const": {"$ref": "http://x"}}), ['{"$ref":"http://x"}'], ["{}"]),
        (schema({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}), ["null"], ["1"]),
        (schema({"type": "object", "x-guidance": {"whitespace_pattern": "x*"}}), ["{ }"], ["{x}"]),
        (schema({"type": "string", "minLength": 2, "madeUp": 5}), ['"ab"'], ['"a"']),
        (Grammar(kind=GrammarKind.REGEX, text="a(b|c)+"), ["abc"], ["a", "abd", "xabc"]),
        (Grammar(kind=GrammarKind.REGEX, text="^[a-z]{2}$"), ["ab"], ["abc"]),
        (
            Grammar(
                kind=GrammarKind.CHOICE, text=json.dumps(["yes", 'say "no"\n', "ü😀", "a|b", "\\d", "/x/"])
            ),
            ["yes", 'say "no"\n', "ü😀", "a|b", "\\d", "/x/"],
            ["a", "b", "1", "no", "yesyes", ""],
        ),
        (Grammar(kind=GrammarKind.LARK, text='start: "a" NUMBER\nNUMBER: /[0-9]+/'), ["a12"], ["a"]),
        (Grammar(kind=GrammarKind.LARK, text='root ::= "a" [0-9]+'), ["a12"], ["a"]),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Grammar) else "",
)
def test_the_grammar_accepts_what_was_asked_for_and_nothing_else(tokens, grammar, good, bad):
    assert [text for text in good if not accepts(tokens, grammar, text)] == []
    assert [text for text in bad if accepts(tokens, grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (schema({"$ref": "https://example.com/schema.json"}), "nothing is fetched"),
        (schema({"properties": {"a": {"items": [{"$ref": "file:///etc/passwd"}]}}}), "nothing is fetched"),
        (schema({"$dynamicRef": "other.json#/a"}), "nothing is fetched"),
        (schema({"$ref": 5}), "nothing is fetched"),
        (schema(False), "must be an object"),
        (schema([]), "must be an object"),
        (Grammar(kind=GrammarKind.LARK, text="((("), "neither in Lark"),
        (Grammar(kind=GrammarKind.LARK, text=""), "neither in Lark"),
        (Grammar(kind=GrammarKind.SCHEMA, text='{"maximum":1e999}'), "cannot carry"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(grammar, words):
    with pytest.raises(InvalidField) as caught:
        serialise(grammar)
    assert caught.value.param == "response_format"
    assert words in caught.value.message


def laid_over(tokenizer: Tokenizer) -> LLTokenizer:
    size = tokenizer.vocab_size
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else size - 1
    return grammar_tokenizer(tokenizer.to_json(), vocab_size=size, own_vocab_size=size, eos_token_ids=[end])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_the_text_of_an_answer_matches(request, kind, seed):
    """A random walk through the masks, read as the client reads it."""
    tokenizer = request.getfixturevalue(kind)
    pattern = r' ?[a-z]{2,5}: "[^"\\]{3,6}"[ü0-9 ]{2,4}'
    tokens = laid_over(tokenizer)
    assert reads_alike(tokenizer, tokens)
    grammar = serialise(Grammar(kind=GrammarKind.REGEX, text=pattern))
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    rng = random.Random(seed)
    ids: list[int] = []
    while not matcher.is_stopped():
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        choice = int(rng.choice(np.flatnonzero(np.unpackbits(bits, bitorder="little"))))
        if choice in tokens.eos_tokens:
            break
        assert choice not in tokenizer.special_ids
        matcher.consume_token(choice)
        ids.append(choice)
    output = OutputText(tokenizer, continues=True)
    text = output.push(ids).text + output.flush()
    assert re.fullmatch(pattern, text)


def forced(tokens: LLTokenizer, grammar: str) -> list[int]:
    """The tokens of the only answer that `grammar` allows, spelled as the parser spells it."""
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    ids: list[int] = []
    while not matcher.is_stopped():
        run = matcher.compute_ff_tokens() or list(allowed(matcher))[:1]
        assert matcher.consume_tokens(run), matcher.get_error()
        ids += run
    assert not matcher.is_error(), matcher.get_error()
    return ids


def allowed(matcher: LLMatcher) -> list[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return [int(i) for i in np.flatnonzero(np.unpackbits(bits, bitorder="little"))]


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_the_name_of_a_token_is_spelled_in_every_kind_of_grammar(request, kind):
    tokenizer = request.getfixturevalue(kind)
    tokens, controls = laid_over(tokenizer), control_tokens(tokenizer.to_json())
    for name in (name for name in controls if "\u2581" not in name):  # how sentencepiece writes a space
        told = f"a{name}b {name}"
        value = {"properties": {name: {"const": told}}, "required": [name]}
        closed = {"type": "object", **value, "additionalProperties": False}
        for grammar, text in (
            (replace(schema(closed), space=""), json.dumps({name: told}, separators=(",", ":"))),
            (Grammar(kind=GrammarKind.CHOICE, text=json.dumps([told])), told),
            (Grammar(kind=GrammarKind.REGEX, text=re.escape(told)), told),
            (Grammar(kind=GrammarKind.LARK, text=f"start: {json.dumps(told)} # {name}"), told),
            (Grammar(kind=GrammarKind.LARK, text="root ::= " + json.dumps(told)), told),
        ):
            ids = forced(tokens, serialise(grammar, controls))
            assert set(ids).isdisjoint(controls.values())
            assert tokens.decode_str(ids) == text


def test_text_is_spelled_in_the_unicode_form_that_it_has(byte_level):
    found = json.loads(byte_level.to_json())
    found["normalizer"] = {"type": "NFC"}  # as Qwen's files have it
    size = byte_level.vocab_size
    tokens = grammar_tokenizer(json.dumps(found), vocab_size=size, own_vocab_size=size, eos_token_ids=[2])
    apart = "cafe\u0301"
    assert tokens.decode_str(forced(tokens, serialise(schema({"const": apart})))) == f'"{apart}"'


def test_a_grammar_names_a_token_outside_of_texts(byte_level):
    tokens, controls = laid_over(byte_level), control_tokens(byte_level.to_json())
    grammar = Grammar(kind=GrammarKind.LARK, text='start: <tool_call> "<tool_call>" /<tool_call>/ <[7]>')
    ids = forced(tokens, serialise(grammar, controls))
    assert [i for i in ids if i in controls.values()] == [controls["<tool_call>"]]
    assert ids[0] == controls["<tool_call>"]
    assert ids[-1] == 7
    with pytest.raises(InvalidField, match="no control token <no_such>"):
        serialise(Grammar(kind=GrammarKind.LARK, text='start: "a" <no_such>'), controls)


@pytest.mark.parametrize("spelled", [True, False])
@pytest.mark.parametrize("opened", ["-><tool", "-><tool_call>"])
def test_a_marker_is_the_text_or_the_token(byte_level, opened, spelled):
    tokens, controls = laid_over(byte_level), control_tokens(byte_level.to_json())
    grammar = Grammar(
        kind=GrammarKind.LARK,
        text="start: opening /[0-9]+/ closing\nTEXT: /(.|\\n)*/",
        markers=(
            MarkerRule("opening", "-><tool_call>=", opens=len(opened)),
            MarkerRule("closing", "</tool_call><|im_end|>"),
        ),
    )
    made = serialise(grammar, controls, ends=[controls["<|im_end|>"]])
    matcher = LLMatcher(tokens, made, log_level=0, limits=LIMITS)

    def said(*parts: str | int) -> list[int]:
        return [i for part in parts for i in ([part] if isinstance(part, int) else tokens.tokenize_str(part))]

    before, behind = (
        ("<tool_call>", "</tool_call>")
        if spelled
        else (
            controls["<tool_call>"],
            controls["</tool_call>"],
        )
    )
    for part in ("free - text ->", before):
        assert matcher.consume_tokens(said(part)), matcher.get_error()
    assert [tokens.decode_str([i]) for i in allowed(matcher)] == ["="]
    assert matcher.consume_tokens(said("=12", behind))
    assert controls["<|im_end|>"] not in allowed(matcher)
    assert matcher.consume_tokens(said("<|im_end|>"))
    assert matcher.is_stopped()
    assert not matcher.is_error()


def test_a_marker_of_a_model_without_the_token_is_its_text(tokens):
    rules = (MarkerRule("o", "<a>", opens=3), MarkerRule("c", "</a>"), MarkerRule("e", ""))
    grammar = Grammar(kind=GrammarKind.LARK, text="start: o c e\nTEXT: /(.|\\n)*/", markers=rules)
    assert accepts(tokens, grammar, "any <text> <a></a>")
    assert not accepts(tokens, grammar, "<a>x</a>")


def test_what_a_marker_opens_with_is_ended_by_its_text_alone(byte_level):
    tokens, controls = laid_over(byte_level), control_tokens(byte_level.to_json())
    rules = (MarkerRule("o", "<|tool|><tool_call>", opens=2),)
    grammar = Grammar(kind=GrammarKind.LARK, text="start: o\nTEXT: /(.|\\n)*/", markers=rules)
    matcher = LLMatcher(tokens, serialise(grammar, controls), log_level=0, limits=LIMITS)
    assert controls["<tool_call>"] not in allowed(matcher)
    assert matcher.consume_tokens(tokens.tokenize_str("a < b <|"))
    assert tokens.decode_str(matcher.compute_ff_tokens()) == "tool|>"


def test_a_tokenizer_that_the_parser_misreads_is_found_out(metaspace):
    assert not reads_alike(metaspace, laid_over(metaspace))


def test_a_tokenizer_without_bytes_has_no_grammars(wordpiece):
    with pytest.raises(GrammarsUnavailable):
        laid_over(wordpiece)
