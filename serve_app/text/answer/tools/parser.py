"""The text of an answer, as it arrives -> plain text and tool calls.

For any text: everything that is not a call comes out as text, in order, without loss or repetition. The only
thing dropped is the markup of a call that is cut off before its name. The fragments of a call's arguments,
joined, are exactly the model's text. The time is linear in the text, however it is cut. Nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set

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
        forced: bool = False,
        leads: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`names` are the names of the offered tools; calls of other tools are plain text.

        Everything after `max_calls` calls (>= 1) is dropped. `forced`: the answer consists only of calls.
        `leads`: the answer is either only calls or only text, as its first character shows.
        """
        self._format = format
        self._source = Source()
        self._calls = Calls(self._source, names, new_id, max_calls)
        self._forced = forced
        self._leads = leads
        self._cut = False
        self._marked = False  # whether a marker has been read, and its calls are being read
        self._run = self._parse()
        self.limited = max_calls is not None
        self.complete = False  # as many calls as are wanted have ended
        next(self._run)

    @property
    def num_calls(self) -> int:
        """The number of calls that have begun."""
        return self._calls.count

    @property
    def whole(self) -> Set[int]:
        """The indices of the calls whose arguments have ended."""
        return self._calls.whole

    @property
    def in_call(self) -> bool:
        """Whether the next characters belong to a call, and so are not plain text."""
        return self._forced or self._marked or self._calls.named

    def feed(self, text: str) -> list[Piece]:
        """Take more text, and return the pieces that are certain."""
        if text and not self.complete:
            self._source.push(text)
            next(self._run, None)
        return self._calls.pieces()

    def end(self, *, cut: bool = False) -> list[Piece]:
        """The held text, at the end of the answer; `cut`: the answer was cut off. Call it once."""
        complete, self._cut = self.complete, cut
        self._source.end()
        for _ in self._run:
            pass
        self.complete = complete  # a call that ends only with the text has been cut off
        return self._calls.pieces()

    def _parse(self) -> Scan[None]:
        try:
            yield from self._parts()
        except LastCallEnded:
            self.complete = True

    def _parts(self) -> Scan[None]:
        source, calls = self._source, self._calls
        found = yield from self._opens_bare()
        if not found:
            found = self._marked = yield from self._next_marker()
        while found:
            try:
                yield from self._format.scan(source, calls)
            except Malformed:
                calls.abandon(cut=self._cut and self.in_call)
            self._marked = calls.named = False
            calls.text(source.release())
            found = self._marked = yield from self._next_marker()
        calls.end()

    def _opens_bare(self) -> Scan[bool]:
        """Whether the answer may begin with a call that has no marker."""
        char = ""
        while self._format.bare and (char := (yield from self._source.peek())) and char in BLANK:
            self._calls.text(self._source.pass_on(1))
        return char != "" and char in self._format.bare

    def _next_marker(self) -> Scan[bool]:
        """Pass on text up to the next marker, and take the marker; False if there is none."""
        source, marker = self._source, self._format.marker
        if self._leads and not self._calls.count:
            marker = yield from self._leading(marker)
        while True:
            count, found = find_marker(source, marker)
            self._calls.text(source.pass_on(count))
            if found:
                source.take(len(marker))
                return True
            if not (yield from source.more()):
                rest = source.pass_on(len(source.text))
                if not (self._cut and self._forced):
                    self._calls.text(rest)
                return False

    def _leading(self, marker: str) -> Scan[str]:
        """The marker if only whitespace precedes it; empty if the rest is text."""
        source = self._source
        try:
            yield from source.blank()
            yield from source.expect(marker)
        except Malformed:
            marker = ""
        source.put_back()
        return marker
