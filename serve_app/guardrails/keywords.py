"""Words and phrases that a text must not contain, found while the text arrives.

A keyword is found as a whole word, whatever its case, and with any spaces between its words. Texts are
passed in as `reading.py` reads them. Does not deal with personal data.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from serve_app.guardrails.findings import Blocked, Check
from serve_app.guardrails.reading import normalised
from serve_app.guardrails.segments import UNSPACED

MAX_HELD_CHARS: Final = 1024  # the longest keyword has 256; the rest is for spaces inside it

_SPACES: Final = re.compile(r"\s+")
_LETTER: Final = rf"[^\W{UNSPACED}]"  # of a script that has spaces between words
_IS_LETTER: Final = re.compile(_LETTER)


class Keywords:
    """All keywords of one guardrail."""

    def __init__(self, keywords: Iterable[str]) -> None:
        """No keyword may be empty or consist of spaces."""
        self._sorted = sorted({_normal(normalised(each).strip()) for each in keywords})
        self._patterns = {keyword: re.compile(_whole(keyword)) for keyword in self._sorted}

    def occur(self, text: str) -> bool:
        """Whether a keyword is in `text`."""
        text = _normal(text)
        # A single alternation of a thousand words would take a hundred times as long.
        return any(each in text and pattern.search(text) for each, pattern in self._patterns.items())

    def have_begun(self, left: str, text: str) -> bool:
        """Whether a keyword begins in `text` and may continue after it. `left` precedes `text`."""
        return any(
            self.may_begin(text[start:])
            and not (_IS_LETTER.match(text[start]) and _IS_LETTER.match((left + text[:start])[-1:]))
            for start in range(max(0, len(text) - MAX_HELD_CHARS), len(text))
        )

    def may_begin(self, text: str) -> bool:
        """Whether `text` is a keyword, or the beginning of one."""
        text = _normal(text)
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)


class KeywordFilter:
    """Passes one text on, except keywords and, for now, an end that may become a keyword."""

    def __init__(self, keywords: Keywords) -> None:
        self._keywords = keywords
        self._left = ""  # the last character that was passed on
        self._held = ""

    def push(self, text: str) -> str:
        """The text that certainly contains no keyword. Raises Blocked."""
        self._held += text
        if self._keywords.occur(self._left + self._settled()):
            raise Blocked(Check.KEYWORDS)
        return self._release(self._first_held())

    def end(self, *, is_cut: bool = False) -> str:
        """The rest. Raises Blocked; with `is_cut`, also if the text ends inside a keyword."""
        has_begun = is_cut and self._keywords.have_begun(self._left, self._held)
        if has_begun or self._keywords.occur(self._left + self._held):
            raise Blocked(Check.KEYWORDS)
        return self._release(len(self._held))

    def _settled(self) -> str:
        """The held text, plus one character if the word at its end may be incomplete."""
        return self._held + ("w" if self._held and _IS_LETTER.match(self._held[-1]) else "")

    def _first_held(self) -> int:
        """Where a keyword that is not complete yet may begin."""
        text, size = self._held, len(self._held)
        for start in range(max(0, size - MAX_HELD_CHARS), size):
            if self._keywords.may_begin(text[start:]):
                return start
        return size

    def _release(self, end: int) -> str:
        released, self._held = self._held[:end], self._held[end:]
        self._left = released[-1:] or self._left
        return released


def _normal(text: str) -> str:
    return _SPACES.sub(" ", text).casefold()


def _whole(keyword: str) -> str:
    """A pattern for the keyword as a whole word, which does not match a part of a longer word."""
    before = f"(?<!{_LETTER})" if _IS_LETTER.match(keyword[0]) else ""
    after = f"(?!{_LETTER})" if _IS_LETTER.match(keyword[-1]) else ""
    return before + re.escape(keyword) + after
