"""The texts of a row: the prompt, words to avoid, words that end the answer, words with a bias.

JSON values and BYTES tensors are read alike. Empty words are ignored, because public clients send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.triton.request.inputs import (
    BAD_WORDS,
    BIAS_WEIGHTS,
    BIAS_WORDS,
    STOP_WORDS,
    TEXT_INPUT,
)
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.errors import PromptTooLong

_MOST: Final[Mapping[str, int]] = {
    BAD_WORDS: limits.MAX_BAD_WORDS,
    STOP_WORDS: limits.MAX_STOP_STRINGS,
    BIAS_WORDS: limits.MAX_BAD_WORDS,
}

BiasedWords = tuple[tuple[str, float], ...]


def read_prompt(row: BatchRow, name: str = TEXT_INPUT) -> str | None:
    """The prompt; None: the prompt is not given as text. Raises InvalidField or PromptTooLong."""
    if name not in row:
        return None
    most = limits.MAX_PROMPT_CHARS
    prompt = row.text(name)
    if not prompt:
        raise row.refused(name, f"must be a string of 1 to {most} characters")
    if len(prompt) > most:
        called = row.client_name(name)
        raise PromptTooLong(called, f"must be a string of 1 to {most} characters")
    return prompt


def read_texts(row: BatchRow, name: str, most: int) -> tuple[str, ...]:
    """Words. Raises InvalidField."""
    found = tuple(word for word in row.texts(name) if word)
    if len(found) > most or any(len(word) > limits.MAX_STOP_CHARS for word in found):
        raise row.refused(
            name, f"must hold at most {most} strings of up to {limits.MAX_STOP_CHARS} characters"
        )
    return found


def read_word_texts(row: BatchRow, name: str) -> tuple[str, ...]:
    """The words of `bad_words` or `stop_words`. Raises InvalidField."""
    return read_texts(row, name, _MOST[name])


def read_biased_words(row: BatchRow, words: str = BIAS_WORDS, weights: str = BIAS_WEIGHTS) -> BiasedWords:
    """Words, each with the number that is added to the logits of its tokens; -inf excludes the tokens.

    Raises InvalidField.
    """
    texts, numbers = row.texts(words), row.vector(weights, may_exclude=True)
    count = 0 if numbers is None else len(numbers)
    if len(texts) != count:
        raise row.refused(weights, f"must have {len(texts)} numbers, one for each of {words}")
    read_texts(row, words, _MOST[BIAS_WORDS])
    pairs = zip(texts, () if numbers is None else numbers.tolist(), strict=True)
    return tuple((text, weight) for text, weight in pairs if text)
