"""The fewest tokens that a text can become, known without tokenising it.

A prompt far beyond the context window is refused for its length alone if it certainly has too many tokens.
That is certain if no step of the tokenizer drops or joins characters without bound: the bytes of a token then
have a known maximum. Other tokenizers have no such bound, so the prompt is tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tokenizers.pre_tokenizers import ByteLevel

# Normal form -> by which factor it may shrink a text in bytes, rounded up: three letters of Hangul
# become one syllable, and the three bytes of a Kelvin sign one letter.
_NORMAL_FORMS: Final = {"NFC": 4, "NFD": 4}
_SPLITS: Final = frozenset({"Split", "Punctuation"})  # steps that may remove what they find
_KEEPS: Final = frozenset({"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength"})
_FALLBACKS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def bytes_per_token(tokenizer_json: str) -> int | None:
    """The most UTF-8 bytes of a text that can become one token; None if no bound is certain."""
    spec: dict[str, Any] = json.loads(tokenizer_json)
    shrink = 1
    for step in _steps(spec.get("normalizer"), "normalizers"):
        factor = _shrinks(step)
        if factor is None:
            return None
        shrink *= factor
    splitters = list(_steps(spec.get("pre_tokenizer"), "pretokenizers"))
    if not all(map(_keeps, splitters)) or spec.get("truncation") is not None:
        return None
    added: list[dict[str, Any]] = spec.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None  # such a token takes any amount of whitespace with it
    model = spec["model"]
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict):
        return None
    is_byte_level = any(step.get("type") == "ByteLevel" for step in splitters)
    if is_byte_level:
        # One character in the vocabulary for each byte; a missing byte would be dropped.
        if not vocab.keys() >= set(ByteLevel.alphabet()):
            return None
        longest = max(map(len, vocab))
    else:
        if not model.get("byte_fallback") or not vocab.keys() >= _FALLBACKS:
            return None
        longest = max(len(token.encode("utf-8", "surrogatepass")) for token in vocab)
    contents = (len(token["content"].encode("utf-8", "surrogatepass")) for token in added)
    return max(longest, *contents, 1) * shrink


def _steps(spec: dict[str, Any] | None, parts: str) -> Iterator[dict[str, Any]]:
    if spec is None:
        return
    if spec.get("type") == "Sequence":
        for part in spec[parts]:
            yield from _steps(part, parts)
    else:
        yield spec


def _shrinks(normalizer: dict[str, Any]) -> int | None:
    """The largest factor by which a text shrinks; None if it is unbounded."""
    kind = normalizer.get("type")
    if kind == "Prepend":
        return 1
    if kind == "Replace":
        found, becomes = normalizer["pattern"].get("String"), normalizer["content"]
        longer = found is not None and len(becomes.encode()) >= len(found.encode())
        return 1 if longer else None
    return _NORMAL_FORMS.get(str(kind))


def _keeps(splitter: dict[str, Any]) -> bool:
    """Whether splitting a text into words keeps all of its characters."""
    kind = splitter.get("type")
    return kind in _KEEPS or (kind in _SPLITS and splitter.get("behavior") != "Removed")
