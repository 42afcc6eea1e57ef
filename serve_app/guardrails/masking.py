"""Personal data in a text, masked or refused while the text arrives.

A stream is masked exactly as the whole text would be, wherever it is cut, because both have the same pieces.
At most twice `segments.MAX_CHARS` are held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from serve_app.guardrails.findings import Blocked, Check
from serve_app.guardrails.pii import CONTEXT_CHARS, PiiFinder
from serve_app.guardrails.segments import Segmenter


class Edit(NamedTuple):
    """What to do with the next `chars` characters."""

    chars: int
    mask: str | None = None  # replaces the characters; None: they stay


class PiiFilter:
    """Decides which parts of one text are masked, or raises Blocked before any personal data."""

    def __init__(self, finder: PiiFinder, *, blocks: bool) -> None:
        self._finder = finder
        self._blocks = blocks
        self._before = ""  # of the text, unmasked
        self._segments = Segmenter(self._spans)
        self.has_masked = False

    def push(self, text: str) -> Iterator[Edit]:
        """Edits that pass on text once it is certain, with personal data masked. Raises Blocked."""
        return self._edits(self._segments.push(text))

    def end(self) -> Iterator[Edit]:
        """Edits for the rest. Raises Blocked."""
        return self._edits(self._segments.end())

    def _edits(self, pieces: Iterable[str]) -> Iterator[Edit]:
        for piece in pieces:
            spans = self._finder.find(piece, self._before)
            self._before = (self._before + piece)[-CONTEXT_CHARS:]
            if spans and self._blocks:
                raise Blocked(Check.PII)
            place = 0
            for span in spans:
                self.has_masked = True
                yield Edit(span.start - place)
                yield Edit(span.end - span.start, span.kind.mask)
                place = span.end
            yield Edit(len(piece) - place)

    def _spans(self, piece: str) -> list[tuple[int, int]]:
        return [(span.start, span.end) for span in self._finder.find(piece, self._before)]
