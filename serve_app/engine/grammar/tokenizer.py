"""A model's tokens as the grammar parser (llguidance) sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from llguidance import LLTokenizer

# The parser's time grows with the square of their number: 0.3 s for 10,000 and 18 s for 56,000.
MANY_ADDED: Final = 4096
_BRACKETED: Final = re.compile("<.*>", re.DOTALL)
_NAMELESS: Final = "\u00ff<[{}]>"  # the parser's own text of a special token without a name


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
            lightened(tokenizer_json), n_vocab=max(vocab_size, own_vocab_size), eos_token=list(eos_token_ids)
        )
    except Exception as error:  # the library raises many kinds
        raise GrammarsUnavailable(
            "the model's tokenizer is of a kind that grammars cannot be laid over"
        ) from error


def lightened(tokenizer_json: str, many: int = MANY_ADDED) -> str:
    """The same tokens, without the names of those that no text matches, if these are more than `many`.

    The parser takes each added token in angle brackets for a special one, which a grammar matches only by
    its name or number. Models of sound or pictures have tens of thousands. Without their names, a grammar
    matches them by number alone. Tokens that the model itself declares special keep their names.
    `tokenizer_json` may be no tokenizer at all.
    """
    if tokenizer_json.count('"special"') <= many:
        return tokenizer_json
    found: dict[str, Any] = json.loads(tokenizer_json)
    tokens, vocabulary = found["added_tokens"], (found.get("model") or {}).get("vocab")
    if not isinstance(vocabulary, dict) or (found.get("decoder") or {}).get("type") != "ByteLevel":
        return tokenizer_json
    kept = [token for token in tokens if token["special"] or not _BRACKETED.fullmatch(token["content"])]
    if len(tokens) - len(kept) <= many:
        return tokenizer_json
    # A tokenizer numbers added tokens anew where one is missing, unless the vocabulary has their numbers.
    numbers = {token["content"]: token["id"] for token in tokens} | vocabulary
    nameless = {token["content"] for token in tokens} - {token["content"] for token in kept}
    found["added_tokens"] = kept
    found["model"]["vocab"] = {
        _NAMELESS.format(number) if text in nameless else text: number for text, number in numbers.items()
    }
    return json.dumps(found)
