"""Records the progress of streams, so that a stream is charged for even if its gateway dies.

A stream's first line is written before the client gets its first token. Afterwards, if both the gateway and
the replica die, the tokens of at most one second are lost; if the replica survives, it reports the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from serve_app.api.backend import Journal
from serve_app.types import UsageRecord

EVERY_S: Final = 1.0


Stream = Callable[[], UsageRecord]  # a streamed request: its record as it is now


class Progress:
    """The streams of one gateway. They share one timer, which runs only while there are streams."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._written: dict[Stream, int] = {}  # -> tokens in its last line
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, stream: Stream) -> None:
        """Called just before the client of `stream` gets its first token."""
        self._written[stream] = -1
        self._write(stream)
        if self._timer is None:
            self._set_timer()

    def end(self, stream: Stream) -> None:
        """Called when the stream has ended, even if it never began."""
        self._written.pop(stream, None)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._write_all)

    def _write_all(self) -> None:
        self._timer = None
        for stream in self._written:
            self._write(stream)
        if self._written:
            self._set_timer()

    def _write(self, stream: Stream) -> None:
        record = stream()
        tokens = record.prompt_tokens + record.completion_tokens
        if tokens != self._written[stream]:
            self._written[stream] = tokens
            self._journal.progressed(record)
