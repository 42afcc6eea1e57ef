"""Tokenizers that grammars cannot be laid over, and the names of control tokens."""

import json

import pytest
from llguidance import LLTokenizer

from serve_app.engine.grammar.tokenizer import (
    GrammarsUnavailable,
    control_tokens,
    grammar_tokenizer,
    unspelled,
)
from tests.support.grammars import EOS, VOCAB, fast

__all__ = ["fast"]


def test_a_model_without_an_end_token_has_no_grammars(fast):
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer(
            fast.backend_tokenizer.to_str(), vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[]
        )
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer("{}", vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[EOS])


def test_control_tokens_lose_their_names_and_others_stay_the_same(fast):
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
    named = json.dumps(found)
    before, after = (LLTokenizer(text, n_vocab=size, eos_token=[EOS]) for text in (named, unspelled(named)))
    controls = control_tokens(named)
    alone = found["model"]["vocab"]["\u00ff"]  # the byte with which the parser marks control tokens
    assert {"<|audio_4|>", "<|end|>", "end!"} < set(controls)
    assert controls.keys().isdisjoint({"two words", "z\u00fcrich"})
    for i in range(size):
        assert before.is_special_token(i) == after.is_special_token(i)
        assert (i in controls.values()) == (after.is_special_token(i) and i != alone)
        if i not in controls.values():
            assert after.decode_bytes([i]) == before.decode_bytes([i])
    for name in controls:
        ids = after.tokenize_str(f"a{name}")
        assert controls.keys().isdisjoint(map(after.decode_str, ([i] for i in ids)))
        assert after.decode_str(ids) == f"a{name}"
