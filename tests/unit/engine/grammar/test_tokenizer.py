"""Tokenizers that grammars cannot be laid over, and those with very many added tokens."""

import json

import pytest
from llguidance import LLTokenizer

from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, grammar_tokenizer, lightened
from tests.support.grammars import EOS, VOCAB, fast

__all__ = ["fast"]


def test_a_model_without_an_end_token_has_no_grammars(fast):
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer(
            fast.backend_tokenizer.to_str(), vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[]
        )
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer("{}", vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[EOS])


def test_many_added_tokens_that_no_text_matches_lose_their_names_and_others_stay_the_same(fast):
    found = json.loads(fast.backend_tokenizer.to_str())
    first = max([*found["model"]["vocab"].values(), *(token["id"] for token in found["added_tokens"])]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    sounds = [(f"<|audio_{i}|>", False) for i in range(5)]
    others = [("two words", False), ("<|end|>", True), ("end!", True), ("z\u00fcrich", False)]
    found["added_tokens"] += [
        {"id": first + i, "content": text, "special": special, **flags}
        for i, (text, special) in enumerate(sounds + others)
    ]
    size = first + len(sounds + others)
    plain = json.dumps(found)
    light = lightened(plain, many=4)
    assert lightened(plain, many=5) == plain
    before, after = (LLTokenizer(text, n_vocab=size, eos_token=[EOS]) for text in (plain, light))
    for i in range(size):
        assert before.is_special_token(i) == after.is_special_token(i)
        nameless = first <= i < first + len(sounds)
        assert after.decode_bytes([i]) == (b"<[%d]>" % i if nameless else before.decode_bytes([i]))
