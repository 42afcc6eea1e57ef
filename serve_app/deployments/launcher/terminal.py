"""What the launcher's processes write to the terminal: lines, and what a process is waiting for.

A closed terminal is not an error: the server should go on, or stop as intended, but not fail.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final, TextIO, cast

CLEAR_LINE: Final = "\r\x1b[2K"
SHOW_CURSOR: Final = "\x1b[?25h"


def say(text: str) -> None:
    """A line of progress."""
    _write(sys.stdout, f"serve: {text}\n")


def show(text: str) -> None:
    """Print `text` as it is."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line about what went wrong."""
    _write(sys.stderr, f"serve: {text}\n")


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """In a terminal, show `text` and the elapsed time below the other lines; elsewhere do nothing."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=cast(TextIO, _Lasting(sys.stdout)))
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    both = sys.stderr.isatty()  # otherwise its lines go where it was redirected
    with Progress(*columns, console=console, transient=True, redirect_stderr=both) as progress:
        progress.add_task(text, total=None)
        yield


def restore() -> None:
    """Restore the terminal after a process was killed inside `waiting`."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            show(f"{CLEAR_LINE}{SHOW_CURSOR}")


class _Lasting:
    """A text stream for `rich`, which would otherwise end the process when the terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        _write(self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Does nothing, as each write is flushed already."""

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except ValueError:  # closed
            return False

    def fileno(self) -> int:
        return self._stream.fileno()


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)  # one write a line: several processes share the terminal
        stream.flush()
    except (OSError, ValueError):
        return
