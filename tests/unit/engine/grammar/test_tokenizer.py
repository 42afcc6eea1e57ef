"""Tokenizers that grammars cannot be laid over."""

import pytest

from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, grammar_tokenizer
from tests.support.grammars import EOS, VOCAB, fast

__all__ = ["fast"]


def test_a_model_without_an_end_token_has_no_grammars(fast):
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer(
            fast.backend_tokenizer.to_str(), vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[]
        )
    with pytest.raises(GrammarsUnavailable):
        grammar_tokenizer("{}", vocab_size=VOCAB, own_vocab_size=VOCAB, eos_token_ids=[EOS])
