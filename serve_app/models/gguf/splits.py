"""How byte-level tokenizers split texts into words, by the names that llama.cpp gives to their rules.

The patterns are those of the tokenizers themselves. A name that is missing here is refused: a text that is
split otherwise becomes other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Split:
    """One rule."""

    patterns: tuple[str, ...]  # one after the other
    whole_words: bool = False  # a word that is a token is that token, whatever its merges
    begins: bool = False  # a text begins with a token of its own, if the file does not say
    composed: bool = False  # characters are composed first (NFC)


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START: Final = r"[^\r\n\p{L}\p{N}]?"
_LLAMA3: Final = rf"{_SHORT}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_SHORT}|{_START}\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35: Final = (
    rf"{_SHORT}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN: Final = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASH}"
_GPT4O: Final = (
    rf"{_START}{_UPPER}*{_LOWER}+{_SHORT}?|{_START}{_UPPER}+{_LOWER}*{_SHORT}?|\p{{N}}{{1,3}}"
    rf"|{_REST_WITH_SLASH}"
)
_DEEPSEEK: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def _alike(split: Split, *names: str) -> dict[str, Split]:
    return dict.fromkeys(names, split)


SPLITS: Final[Mapping[str, Split]] = {
    **_alike(
        Split((_LLAMA3,), whole_words=True, begins=True),
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    **_alike(Split((_LLAMA3,)), "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    **_alike(Split((_QWEN2,), composed=True), "qwen2", "deepseek-r1-qwen", "megrez"),
    **_alike(Split((_QWEN2,)), "stablelm2", "hunyuan", "solar-open"),
    **_alike(Split((_QWEN35,), composed=True), "qwen35"),
    **_alike(Split((_GPT2,)), "gpt-2", "phi-2", "olmo", "jais", "mpt", "exaone4", "trillion", "mellum"),
    **_alike(
        Split((r"\p{N}", _GPT2)), *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone")
    ),
    **_alike(Split((_TEKKEN,), whole_words=True, begins=True), "tekken"),
    **_alike(Split((_GPT4O,)), "gpt-4o", "llama4", "kanana2", "minimax-m2"),
    **_alike(Split(_DEEPSEEK), "deepseek-v3", "hunyuan-dense"),
}
