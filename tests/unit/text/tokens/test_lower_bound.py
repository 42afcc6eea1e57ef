"""The fewest tokens of a text: never more than there are, and known only where that is certain."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import serve_app.models.demo as demo
from serve_app.text.tokens.lower_bound import bytes_per_token
from serve_app.text.tokens.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(demo.__file__).parent / "demo-chat")
SPEC: dict[str, Any] = json.loads(TOKENIZER.to_json())


def fewest(text: str) -> int:
    assert TOKENIZER._bytes_per_token is not None
    return -(-len(text) // TOKENIZER._bytes_per_token)


@pytest.mark.parametrize(
    "text", [" ", "a", "\n", "the ", "<|im_start|>", "é", "e\u0301", "\u1112\u1161\u11ab", "🎉", "0"]
)
def test_no_text_has_fewer_tokens(text: str) -> None:
    assert 1 <= fewest(text * 1_000) <= len(TOKENIZER.encode_now(text * 1_000))


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_text_at_all_has_fewer_tokens(text: str) -> None:
    assert fewest(text) <= len(TOKENIZER.encode_now(text))


def test_the_longest_tokens_make_the_bound() -> None:
    texts = [TOKENIZER.token_text(i) for i in range(TOKENIZER.vocab_size)]
    longest = max(texts, key=len)
    text = longest * 500
    assert len(TOKENIZER.encode_now(text)) <= 4 * fewest(text), "the bound is of use"
    random.Random(7).shuffle(texts)
    joined = "".join(texts)
    assert fewest(joined) <= len(TOKENIZER.encode_now(joined))


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "BertNormalizer"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}},
        {"pre_tokenizer": None},  # no byte-level letters, and no fallback
        {"truncation": {"max_length": 10}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
        {"model": {**SPEC["model"], "vocab": {"a": 0, "b": 1}}},
        {"added_tokens": [{**SPEC["added_tokens"][0], "lstrip": True}]},
    ],
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(change: dict[str, Any]) -> None:
    assert bytes_per_token(json.dumps({**SPEC, **change})) is None


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({}, 16),
        ({"normalizer": {"type": "NFC"}}, 64),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, 16),
        ({"added_tokens": [{**SPEC["added_tokens"][0], "content": "x" * 40}]}, 40),
    ],
)
def test_the_bound_is_the_longest_token(change: dict[str, Any], bound: int) -> None:
    assert bytes_per_token(json.dumps({**SPEC, **change})) == bound


def test_a_text_has_at_least_so_many_tokens() -> None:
    assert TOKENIZER.fewest(16 * 100) == 100
    assert TOKENIZER.fewest(16 * 100 + 1) == 101
