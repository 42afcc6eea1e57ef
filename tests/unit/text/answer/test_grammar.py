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
from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, grammar_tokenizer
from serve_app.errors import InvalidField
from serve_app.text.answer.grammar import reads_alike, serialise
from serve_app.text.answer.output_text import OutputText
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import Grammar, GrammarKind
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


def test_a_tokenizer_that_the_parser_misreads_is_found_out(metaspace):
    assert not reads_alike(metaspace, laid_over(metaspace))


def test_a_tokenizer_without_bytes_has_no_grammars(wordpiece):
    with pytest.raises(GrammarsUnavailable):
        laid_over(wordpiece)
