"""A model's tokens as the grammar parser (llguidance) sees them."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer


class GrammarsUnavailable(Exception):
    """The parser cannot use this tokenizer; the message says why."""


def grammar_tokenizer(
    tokenizer_json: str, *, vocab_size: int, eos_token_ids: Sequence[int], own_vocab_size: int
) -> LLTokenizer:
    """The parser's tokenizer, from the text of a model's tokenizer.json.

    `vocab_size` is the model's and `own_vocab_size` the tokenizer's; either may be the larger one.
    Holds the interpreter lock for about 15 us a token. Raises GrammarsUnavailable.
    """
    if not eos_token_ids:
        raise GrammarsUnavailable("the model has no end-of-sequence token")
    try:
        return LLTokenizer(
            tokenizer_json, n_vocab=max(vocab_size, own_vocab_size), eos_token=list(eos_token_ids)
        )
    except Exception as error:  # the library raises many kinds
        raise GrammarsUnavailable(
            "the model's tokenizer is of a kind that grammars cannot be laid over"
        ) from error
