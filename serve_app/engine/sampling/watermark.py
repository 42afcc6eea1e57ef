"""A watermark in generated text: the green tokens after each token, and their detection.

After each token, half of the vocabulary is green; this half is chosen by a generator seeded with (previous
token x key) mod 2**64. A watermarked request adds DELTA to green logits before a token is chosen. In text
without the mark, half of the tokens are green. So someone who has the key can tell by the share of green
tokens whether text has the mark. The generator is splitmix64; each of its words decides on eight tokens, one
byte per token. So the marks do not depend on the size of the vocabulary, and the detector need not know that
size.

The scheme of Kirchenbauer et al., "A Watermark for Large Language Models" (2023),
with one token of context. Works on arrays only, without logits or text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from serve_app.config import WATERMARK_KEY

GAMMA: Final = 0.5  # part of the vocabulary that is green
DELTA: Final = 2.0  # added to a green logit

_GREEN_BYTES: Final = round(GAMMA * 256)  # of the 256 values of a byte
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # the step of splitmix64
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Detection:
    """The evidence of the watermark in a text."""

    z_score: float  # standard deviations above what unmarked text has; 4 is one in 30 000
    green_fraction: float  # 0 .. 1
    num_tokens: int  # counted tokens


def green(previous: Sequence[int], vocab_size: int, key: int = WATERMARK_KEY) -> npt.NDArray[np.bool_]:
    """Which tokens are green after each of `previous` [R]: [R, vocab_size]."""
    words = np.arange(-(-vocab_size // 8), dtype=np.uint64)
    values = _generate(_seeds(previous, key)[:, None], words[None, :])  # [R, words]
    return values.astype("<u8").view(np.uint8)[:, :vocab_size] < _GREEN_BYTES


def detect(token_ids: Sequence[int], *, key: int = WATERMARK_KEY) -> Detection:
    """Count the green tokens of a text of token ids, from its second token on.

    Each pair of neighbours counts only once, since a repeated pair is no new evidence. A text without pairs
    has a score of 0.
    """
    pairs = list(dict.fromkeys(pairwise(token_ids)))
    count = len(pairs)
    if not count:
        return Detection(0.0, 0.0, 0)
    previous, tokens = (list(column) for column in zip(*pairs, strict=True))
    at = np.array(tokens, dtype=np.uint64)
    values = _generate(_seeds(previous, key), at // np.uint64(8))
    bytes_ = (values >> (at % np.uint64(8) * np.uint64(8))) & np.uint64(0xFF)
    hits = int((bytes_ < _GREEN_BYTES).sum())
    deviation = math.sqrt(count * GAMMA * (1 - GAMMA))
    return Detection((hits - GAMMA * count) / deviation, hits / count, count)


def _seeds(previous: Sequence[int], key: int) -> npt.NDArray[np.uint64]:
    seeds: npt.NDArray[np.uint64] = np.array(previous, dtype=np.uint64) * np.uint64(key)  # mod 2**64
    return seeds


def _generate(seeds: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The outputs, with number `words`, of splitmix64 generators that have these seeds."""
    x = seeds + (words + np.uint64(1)) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    last: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return last
