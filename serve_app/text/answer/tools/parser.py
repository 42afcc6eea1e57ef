"""The text of an answer -> plain text and tool calls, as it comes.

For any text: what is not a call comes out as text, in order, nothing lost or doubled. The
fragments of a call's arguments are, joined, what the model wrote. The time is linear in the
text, however the text is cut into pieces. And nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from serve_app.text.answer.source import BLANK, Malformed, Scan, Source, find_marker
from serve_app.text.answer.tools.calls import Calls, LastCallEnded, Piece, new_call_id
from serve_app.text.answer.tools.format import ToolFormat


class ToolParser:
    """Reads one answer.

    >>> pieces = parser.feed(text)  # until the answer ends
    >>> tail = parser.end()
    """

    def __init__(
        self,
        format: ToolFormat,
        names: Collection[str],
        *,
        max_calls: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`names` are those of the tools on offer; other calls are text.

        What follows `max_calls` calls (>= 1) is dropped.
        """
        self._format = format
        self._source = Source()
        self._calls = Calls(self._source, names, new_id, max_calls)
        self._run = self._parse()
        self.limited = max_calls is not None
        self.complete = False  # as many calls as are wanted have ended
        next(self._run)

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._calls.count

    def feed(self, text: str) -> list[Piece]:
        """What more text brings."""
        if text and not self.complete:
            self._source.push(text)
            next(self._run, None)
        return self._calls.pieces()

    def end(self) -> list[Piece]:
        """What was held back, when the answer has ended. To be called once."""
        complete = self.complete
        self._source.end()
        for _ in self._run:
            pass
        self.complete = complete  # a call that ends because the text does is cut off
        return self._calls.pieces()

    def _parse(self) -> Scan[None]:
        try:
            yield from self._parts()
        except LastCallEnded:
            self.complete = True

    def _parts(self) -> Scan[None]:
        source, calls = self._source, self._calls
        found = (yield from self._opens_bare()) or (yield from self._next_marker())
        while found:
            try:
                yield from self._format.scan(source, calls)
            except Malformed:
                calls.abandon()
            calls.text(source.release())
            found = yield from self._next_marker()
        calls.end()

    def _opens_bare(self) -> Scan[bool]:
        """Whether the answer begins with what may be a call without a marker."""
        char = ""
        while self._format.bare and (char := (yield from self._source.peek())) and char in BLANK:
            self._calls.text(self._source.pass_on(1))
        return char != "" and char in self._format.bare

    def _next_marker(self) -> Scan[bool]:
        """Hand on text up to the next marker, which is taken; False when there is none."""
        source, marker = self._source, self._format.marker
        while True:
            count, found = find_marker(source, marker)
            self._calls.text(source.pass_on(count))
            if found:
                source.take(len(marker))
                return True
            if not (yield from source.more()):
                self._calls.text(source.pass_on(len(source.text)))
                return False
