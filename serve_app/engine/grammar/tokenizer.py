"""A model's tokens as the grammar parser (llguidance) sees them.

The parser treats each special token, and each added token in angle brackets, as a control token, which no
text matches. But the parser spells forced text with the model's own tokenizer, which finds control tokens in
text by their names. So the parser is given the tokens without these names, and grammars refer to them by
number.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

from llguidance import LLTokenizer

_BRACKETED: Final = re.compile("<.*>", re.DOTALL)
_NAMELESS: Final = "\u00ff<[{}]>"  # the parser's own text of a special token without a name


class GrammarsUnavailable(Exception):
    """The parser cannot use this tokenizer; the message says why."""


def grammar_tokenizer(
    tokenizer_json: str, *, vocab_size: int, eos_token_ids: Sequence[int], own_vocab_size: int
) -> LLTokenizer:
    """The parser's tokenizer, built from the text of a model's tokenizer.json.

    `vocab_size` is the model's vocabulary size, and `own_vocab_size` the tokenizer's; either may be larger.
    Holds the interpreter lock for about 15 us per token. Raises GrammarsUnavailable.
    """
    if not eos_token_ids:
        raise GrammarsUnavailable("the model has no end-of-sequence token")
    try:
        return LLTokenizer(
            unspelled(tokenizer_json), n_vocab=max(vocab_size, own_vocab_size), eos_token=list(eos_token_ids)
        )
    except Exception as error:  # the library raises many kinds
        raise GrammarsUnavailable(
            "the model's tokenizer is of a kind that grammars cannot be laid over"
        ) from error


def control_tokens(tokenizer_json: str) -> dict[str, int]:
    """The names and numbers of the tokens that no text matches. `tokenizer_json` may be invalid."""
    added = json.loads(tokenizer_json).get("added_tokens") or ()
    return {token["content"]: token["id"] for token in added if _is_control(token)}


def _is_control(token: dict[str, Any]) -> bool:
    return bool(token["special"] or _BRACKETED.fullmatch(token["content"]))


def unspelled(tokenizer_json: str) -> str:
    """The same tokens, except that control tokens get names that no text contains.

    In byte-level BPE, control tokens become words of the vocabulary with the parser's own mark for a nameless
    token. Otherwise the parser's time would grow with the square of the number of added tokens (18 s for
    56,000). `tokenizer_json` may be invalid.
    """
    found: dict[str, Any] = json.loads(tokenizer_json)
    added, model = found.get("added_tokens") or [], found.get("model") or {}
    controls = [token for token in added if _is_control(token)]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict) and (found.get("decoder") or {}).get("type") == "ByteLevel":
        names = {token["content"]: _NAMELESS.format(token["id"]) for token in controls}
        # A tokenizer numbers added tokens anew where one is missing, unless the vocabulary has their numbers.
        model["vocab"] = {token["content"]: token["id"] for token in added} | vocabulary
        found["added_tokens"] = [token for token in added if not _is_control(token)]
        found["normalizer"] = None  # forced text stays as it is, whatever Unicode form it has
    else:
        secret = secrets.token_hex(8)  # so that no client can write such a name
        names = {token["content"]: f"<{secret} {token['id']}>" for token in controls}
        for token in controls:
            token["content"] = names[token["content"]]
    _rename(model, names)
    return json.dumps(found)


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename words of a tokenizer's vocabulary, which is a mapping to numbers or a list of pairs."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(word, word): number for word, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(word, word), score] for word, score in vocabulary]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
