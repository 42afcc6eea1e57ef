"""One text, read by the rules that need no model: keywords first, then personal data."""

from __future__ import annotations

from serve_app.guardrails.keywords import KeywordFilter
from serve_app.guardrails.masking import PiiFilter
from serve_app.guardrails.pii import PiiFinder
from serve_app.guardrails.reading import Reading


class TextFilter:
    """Passes one text on as its rules allow. Each method raises Blocked."""

    def __init__(
        self, keywords: KeywordFilter | None, pii: PiiFilter | None, *, is_json: bool = False
    ) -> None:
        """`is_json`: the text is JSON, and its escapes are read as the characters they stand for."""
        self._keywords = keywords
        self._pii = pii
        self._is_json = is_json
        self._reading = Reading(is_json=is_json)

    @property
    def has_masked(self) -> bool:
        return self._pii is not None and self._pii.has_masked

    def push(self, text: str) -> str:
        """The text that may be sent now."""
        if self._keywords is None and self._pii is None:
            return text
        return self._passed(self._reading.push(text))

    def end(self, stop: str | None = None) -> str:
        """The rest of the text; another text may follow.

        `stop`: the part of the stop string that was cut from the text. The rules read it too, so that they
        find a match across the cut.
        """
        if self._keywords is None and self._pii is None:
            return ""
        read = self._reading.end()
        if stop:
            read += self._reading.hidden(stop)
        if self._keywords is not None:
            read = self._keywords.push(read) + self._keywords.end(is_cut=stop is not None)
        sent = self._masked(read, is_end=True)
        self._reading = Reading(is_json=self._is_json)
        return sent

    def whole(self, text: str) -> str:
        """The filter's result for a whole text."""
        return self.push(text) + self.end()

    def _passed(self, read: str) -> str:
        if self._keywords is not None:
            read = self._keywords.push(read)
        return self._masked(read, is_end=False)

    def _masked(self, read: str, *, is_end: bool) -> str:
        if self._pii is None:
            return self._reading.take(len(read))
        sent = []
        for edit in [*self._pii.push(read), *(self._pii.end() if is_end else ())]:
            written = self._reading.take(edit.chars)
            sent.append(written if edit.mask is None else edit.mask if written else "")
        return "".join(sent)


def masked(text: str, finder: PiiFinder) -> str:
    """`text` with its personal data masked."""
    return TextFilter(None, PiiFilter(finder, blocks=False)).whole(text)
