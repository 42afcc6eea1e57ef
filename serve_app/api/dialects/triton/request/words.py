"""Word lists: token sequences in the two rows of one tensor.

Row 0 has the ids of all words, one word after the other. Row 1 has the inclusive prefix sums of the words'
lengths, then -1. The words [11, 4] and [9, 2, 6] are [[11, 4, 9, 2, 6], [2, 5, -1, -1, -1]]. Anything in row
0 after the last offset is padding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from serve_app.api.dialects.triton.request.row import BatchRow

Words = tuple[tuple[int, ...], ...]

PADDING: Final = -1


def read_words(row: BatchRow, name: str, most_words: int, most_tokens: int) -> Words:
    """The words of a list; an absent list has none. Raises InvalidField, which names the tensor.

    Does not check that the ids are in the vocabulary: `fit.py` does.
    """
    table = row.table(name)
    if table is None:
        return ()
    ids, offsets = np.frombuffer(table.data, "<i4").reshape(table.shape).tolist()
    return _words(row, name, ids, _ends(row, name, offsets), most_words, most_tokens)


def _ends(row: BatchRow, name: str, offsets: list[int]) -> list[int]:
    """The offsets before the padding."""
    count = next((i for i, offset in enumerate(offsets) if offset == PADDING), len(offsets))
    if any(offset != PADDING for offset in offsets[count:]):
        raise row.refused(name, f"row 1: only {PADDING} may follow a {PADDING}")
    ends, width = offsets[:count], len(offsets)
    if any(not 1 <= end <= width for end in ends):
        raise row.refused(
            name, f"row 1: offsets must be from 1 to {width}, the width of the list, or {PADDING}"
        )
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise row.refused(name, "row 1: offsets must increase strictly")
    return ends


def _words(
    row: BatchRow, name: str, ids: list[int], ends: list[int], most_words: int, most_tokens: int
) -> Words:
    if len(ends) > most_words:
        raise row.refused(name, f"must hold at most {most_words} words")
    words = tuple(tuple(ids[start:end]) for start, end in pairwise([0, *ends]))
    if any(len(word) > most_tokens for word in words):
        raise row.refused(name, f"words must have at most {most_tokens} tokens each")
    if any(token < 0 for word in words for token in word):
        raise row.refused(name, "row 0: tokens of words must be ids of the vocabulary")
    return words
