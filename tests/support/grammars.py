"""Grammars over the tiny tokenizer, for tests of constraints and of engines under them."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from tests.support.tiny_llama import tiny_tokenizer

EOS = 2
VOCAB = 384


@pytest.fixture(scope="session")
def fast() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def tokens(fast: Any) -> LLTokenizer:
    return grammar_tokenizer(
        fast.backend_tokenizer.to_str(), vocab_size=VOCAB, own_vocab_size=len(fast), eos_token_ids=[EOS]
    )


def regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)
