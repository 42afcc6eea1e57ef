"""The output of tool call parsers: plain text, and calls in pieces.

A call is opened when its name is known and its arguments begin. An open call cannot be taken back,
and its arguments are passed on as they come. A call that breaks before it is open is plain text.
Only tools that were offered are called. Independent of the format.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from serve_app.text.answer.source import BLANK, Malformed, Source
from serve_app.types import ToolCallDelta

Piece: TypeAlias = str | ToolCallDelta

_MAX_BLANK_CHARS: Final = 1_024  # a longer stretch of whitespace is text


def new_call_id() -> str:
    """An id in the form of the OpenAI protocol."""
    return "call_" + secrets.token_hex(12)


class LastCallEnded(Exception):
    """The last call that is wanted has ended."""


class Calls:
    """The output of one parser. `source` is the text that the parser reads."""

    def __init__(
        self, source: Source, names: Collection[str], new_id: Callable[[], str], limit: int | None
    ) -> None:
        """`limit`: everything after the first `limit` calls is dropped."""
        self._source = source
        self._names = names
        self._new_id = new_id
        self._limit = limit
        self._pieces: list[Piece] = []
        self._index = -1  # of the last call
        self._open = False
        self.whole: set[int] = set()  # indices of the calls whose arguments have ended
        self.named = False  # the current call names a tool that was offered
        self._early: list[str] = []  # arguments that came before the name
        self._blank: str | None = ""  # whitespace since the start or a call; None after anything else

    @property
    def count(self) -> int:
        """The number of calls that have begun."""
        return self._index + 1

    def pieces(self) -> list[Piece]:
        """Everything written since the last call of this method."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def text(self, text: str) -> None:
        """Write plain text. Whitespace around calls is part of their syntax, unless there is a lot of it."""
        if self._blank is not None:
            text = self._blank + text
            if not text.strip(BLANK) and len(text) <= _MAX_BLANK_CHARS:
                self._blank = text
                return
            self._blank = None
        if text:
            self._pieces.append(text)

    def check(self, name: str) -> None:
        """Raises Malformed for a tool that was not offered."""
        if name not in self._names:
            raise Malformed
        self.named = True

    def open(self, name: str) -> None:
        """Begin a call. The held characters are dropped, as they were the call's syntax."""
        self._source.release()
        self._index += 1
        self._open = True
        self._blank = ""
        self._pieces.append(ToolCallDelta(index=self._index, id=self._new_id(), name=name))
        if self._early:
            self._write("".join(self._early))
            self._early.clear()
            self.arguments_ended()

    def take_arguments(self, count: int) -> None:
        """Take argument characters from the source. Raises Malformed if too many wait for a name."""
        if self._open:
            self._write(self._source.pass_on(count))
            return
        start = self._source.at
        self._source.take(count)
        self._early.append(self._source.text[start : start + count])

    def arguments_ended(self) -> None:
        """The arguments of the open call, if there is one, are complete."""
        if self._open:
            self.whole.add(self._index)

    def close(self, default: str = "") -> None:
        """End the open call; if it has no arguments, it gets `default`. Raises LastCallEnded."""
        self._write(default)
        self.arguments_ended()
        self._source.release()
        self._ended()

    def abandon(self, *, cut: bool) -> None:
        """End a malformed call. An open call stays as it is; held characters become text, unless `cut`.

        Raises LastCallEnded.
        """
        self._early.clear()
        held = self._source.release()
        if self._open:
            self._ended()
        if not cut:
            self.text(held)

    def end(self) -> None:
        """The text has ended."""
        if self._blank and self._index < 0:
            self._pieces.append(self._blank)
            self._blank = None

    def _ended(self) -> None:
        self._open = False
        if self.count == self._limit:
            raise LastCallEnded

    def _write(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(ToolCallDelta(index=self._index, arguments=arguments))
