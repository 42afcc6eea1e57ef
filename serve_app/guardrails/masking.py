"""Personal data of a text, masked or refused while the text arrives.

The mask of a stream is the mask of the whole text, wherever the stream is cut: both have the same pieces. At
most twice `segments.MAX_CHARS` are held back.
"""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.guardrails.findings import Blocked, Check
from serve_app.guardrails.pii import CONTEXT_CHARS, PiiFinder
from serve_app.guardrails.segments import Segmenter


class PiiFilter:
    """Passes one text on with its personal data masked, or raises Blocked before any of that."""

    def __init__(self, finder: PiiFinder, *, blocks: bool) -> None:
        self._finder = finder
        self._blocks = blocks
        self._before = ""  # of the text, unmasked
        self._segments = Segmenter(self._spans)
        self.has_masked = False

    def push(self, text: str) -> str:
        """What is certain to be no part of personal data, masks included. Raises Blocked."""
        return self._masked(self._segments.push(text))

    def end(self) -> str:
        """The rest. Raises Blocked."""
        return self._masked(self._segments.end())

    def _masked(self, pieces: Iterable[str]) -> str:
        return "".join(map(self._mask, pieces))

    def _mask(self, piece: str) -> str:
        spans = self._finder.find(piece, self._before)
        self._before = (self._before + piece)[-CONTEXT_CHARS:]
        if not spans:
            return piece
        if self._blocks:
            raise Blocked(Check.PII)
        self.has_masked = True
        parts, place = [], 0
        for span in spans:
            parts += [piece[place : span.start], span.kind.mask]
            place = span.end
        return "".join([*parts, piece[place:]])

    def _spans(self, piece: str) -> list[tuple[int, int]]:
        return [(span.start, span.end) for span in self._finder.find(piece, self._before)]


def masked(text: str, finder: PiiFinder) -> str:
    """`text` with its personal data masked."""
    once = PiiFilter(finder, blocks=False)
    return once.push(text) + once.end()
