"""A text that arrives in pieces, for parsers that are written as if the text were complete.

A parser is a generator: it yields when it needs more text, and is resumed when more has arrived.
Characters that a parser takes are held until the parser knows what they are (`release`), so that
text that only looked like syntax can still be shown. No character is read twice, except after a
`put_back`, and at most MAX_HELD_CHARS are held. So parsing is linear, and its result does not
depend on how the text was cut. Independent of the format.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

MAX_HELD_CHARS: Final = 2**16  # a longer beginning of a call is text
BLANK: Final = " \t\r\n"  # JSON's whitespace

T = TypeVar("T")
Scan: TypeAlias = Generator[None, None, T]  # yields whenever it needs more text


class Malformed(Exception):
    """The text is not in the format. The held characters are plain text."""


class Source:
    """`text[at:]` has arrived but has not been taken yet."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._held: list[str] = []
        self._num_held = 0
        self._num_pushes = 0

    def push(self, text: str) -> None:
        """Add text. Copies only characters not classified yet, which are fewer than a marker has."""
        self.text, self.at = self.text[self.at :] + text, 0
        self._num_pushes += 1

    def end(self) -> None:
        """Record that no more text will be pushed."""
        self.ended = True

    def more(self) -> Scan[bool]:
        """Wait for another push; False at the end."""
        seen = self._num_pushes
        while self._num_pushes == seen and not self.ended:
            yield
        return self._num_pushes != seen

    def peek(self) -> Scan[str]:
        """The next character, without taking it; empty at the end."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def take(self, count: int = 1) -> None:
        """Take characters and hold them. Raises Malformed when too many are held."""
        room = MAX_HELD_CHARS - self._num_held
        self._hold(min(count, room))
        if count > room:
            raise Malformed

    def pass_on(self, count: int) -> str:
        """Take characters without holding them."""
        piece = self.text[self.at : self.at + count]
        self.at += len(piece)
        return piece

    def release(self) -> str:
        """Return the held characters, and stop holding them."""
        held = "".join(self._held)
        self._held.clear()
        self._num_held = 0
        return held

    def put_back(self) -> None:
        """Put the held characters back, to be read again."""
        held = self.release()
        self.text, self.at = held + self.text[self.at :], 0

    def expect(self, literal: str, *, or_end: bool = False) -> Scan[None]:
        """Take `literal`; with `or_end`, a prefix that ends the text is enough. Raises Malformed."""
        for wanted in literal:
            char = yield from self.peek()
            if or_end and not char:
                return
            if char != wanted:
                raise Malformed
            self.take()

    def blank(self) -> Scan[str]:
        """Take whitespace. Returns the next character, or "" at the end."""
        while (char := (yield from self.peek())) and char in BLANK:
            self.take()
        return char

    def _hold(self, count: int) -> None:
        piece = self.pass_on(count)
        self._held.append(piece)
        self._num_held += len(piece)


def find_marker(source: Source, marker: str) -> tuple[int, bool]:
    """The number of characters that certainly precede the next `marker`, and whether the marker follows them.

    An empty marker is never found.
    """
    text, at = source.text, source.at
    if marker:
        found = text.find(marker, at)
        if found >= 0:
            return found - at, True
        for length in range(min(len(marker) - 1, len(text) - at), 0, -1):
            if text.endswith(marker[:length]):
                return len(text) - at - length, False
    return len(text) - at, False
