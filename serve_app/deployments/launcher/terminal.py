"""What the launcher's processes tell the terminal: one line each, and never an error for one that is gone."""

from __future__ import annotations

import sys
from typing import IO


class CannotServe(Exception):
    """The message says what is wrong and what to do next."""


def say(text: str) -> None:
    """A line of progress."""
    _write(sys.stdout, f"serve: {text}\n")


def show(text: str) -> None:
    """Text as it is."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """A line about what went wrong."""
    _write(sys.stderr, f"serve: {text}\n")


def _write(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)  # one write a line: several processes share the terminal
        stream.flush()
    except (OSError, ValueError):
        return
