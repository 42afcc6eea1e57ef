"""Cuts a text into pieces while it arrives. No personal data spans two pieces.

A word is a piece, and so is the text between words. Words that may be parts of one number, such as those of
`+1 (212) 555 0100` or `DE89 3704 0044`, together form one piece. Cuts depend on the text alone, not on how
it arrives, so a stream and a whole text have the same pieces. Independent of the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

# Scripts without spaces, as a set for patterns: each of their characters stands alone.
UNSPACED: Final = (
    "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff01-\uff0a\uff0c\uff0f\uff1a-\uff1f\U00020000-\U0003ffff"
)
_WORD: Final = re.compile(rf"[^\s{UNSPACED}]+")
_BETWEEN: Final = re.compile(rf"[\s{UNSPACED}]+")
_LETTERS: Final = re.compile(r"[A-Z]{1,4}")  # a group of an IBAN

MAX_CHARS: Final = 384  # of a piece; personal data has at most 254, so it fits after a cut
CUT_AT: Final = 128  # where a longer word is cut, unless something is found there
CHAIN_CHARS: Final = 128  # of words that may be one number; a number with its spaces has at most half
NUMBER_CHARS: Final = 64

# (piece) -> the (start, end) of what must stay in one piece
Uncut = Callable[[str], list[tuple[int, int]]]


class Segmenter:
    """Cuts one text. `push` returns the pieces that are complete, `end` returns the rest."""

    def __init__(self, uncut: Uncut) -> None:
        self._uncut = uncut
        self._rest = ""

    def push(self, text: str) -> Iterator[str]:
        self._rest += text
        return self._pieces(is_end=False)

    def end(self) -> Iterator[str]:
        return self._pieces(is_end=True)

    def _pieces(self, *, is_end: bool) -> Iterator[str]:
        text, start = self._rest, 0
        try:
            while start < len(text):
                end = self._next(text, start, is_end=is_end)
                if end is None:
                    break
                piece, start = text[start:end], end
                yield piece
        finally:
            self._rest = text[start:]

    def _next(self, text: str, start: int, *, is_end: bool) -> int | None:
        """Where the piece at `start` ends; None if that is not known yet."""
        between = _BETWEEN.match(text, start)
        if between is not None:
            return between.end()
        end = _word_end(text, start)
        if end - start >= MAX_CHARS:
            return start + self._cut(text[start : start + MAX_CHARS])
        while True:
            if end == len(text):
                return end if is_end else None
            if not _is_number(text[start:end]) or text[end] not in " \t\u00a0":
                return end
            following = _word_end(text, end + 1)
            if following == len(text) and not is_end and following <= end + MAX_CHARS:
                return None  # the next word may still become a part of the number
            if not _continues(text[end + 1 : following]):
                return end
            if following - start > CHAIN_CHARS:
                return start + self._cut_chain(text[start:end])
            end = following

    def _cut(self, word: str) -> int:
        """Where to cut a word that is too long."""
        for start, end in self._uncut(word):
            if start < CUT_AT < end:
                return start or end
        return CUT_AT

    def _cut_chain(self, chain: str) -> int:
        """Where to end a long row of numbers: between two numbers, but not within personal data."""
        spans = self._uncut(chain)
        for place in range(len(chain) - NUMBER_CHARS, 0, -1):
            if chain[place] in " \t\u00a0" and not any(start < place < end for start, end in spans):
                return place
        return len(chain)


def _word_end(text: str, start: int) -> int:
    """The end of the word at `start`, or of its first MAX_CHARS, to bound how often a long word is read."""
    found = _WORD.match(text, start, start + MAX_CHARS)
    return start if found is None else found.end()


def _is_number(piece: str) -> bool:
    """Whether another word may continue this number."""
    return any(map(str.isdigit, piece)) or (len(piece) <= 3 and not any(map(str.isalnum, piece)))


def _continues(word: str) -> bool:
    """Whether this word may continue the number before it."""
    return bool(word) and (_is_number(word) or _LETTERS.fullmatch(word) is not None)
