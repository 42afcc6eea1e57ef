"""A replica's own log: JSON lines in a file next to the replica's log file of Serve."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Final

from serve_app.telemetry import JsonFormatter

PREFIX: Final = "serve_app_"
PACKAGE: Final = "serve_app"
SERVE: Final = "ray.serve"


def log_as_json() -> None:
    """Write this package's log as JSON, one object a line, in this process.

    The file is named like Serve's file for this replica, with the prefix `serve_app_`, and is rotated in the
    same way. Without such a file, as outside a replica, the log goes to standard error.
    """
    handler = _beside_serve() or logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(PACKAGE)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # Serve's own format would repeat every line


def to_terminal(message: str) -> None:
    """A line in the terminal where the cluster was started: Ray copies a worker's standard output to it.

    In a replica, `print` and `sys.stdout` write to Serve's log.
    """
    os.write(1, f"{message}\n".encode())


@contextmanager
def warnings_shown(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with each warning that this package logs in the block, such as a missing compiler."""
    handler = _Shown(show)
    logger = logging.getLogger(PACKAGE)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


def _beside_serve() -> logging.Handler | None:
    for handler in logging.getLogger(SERVE).handlers:
        target = handler.target if isinstance(handler, MemoryHandler) else handler
        if isinstance(target, RotatingFileHandler):
            theirs = Path(target.baseFilename)
            return RotatingFileHandler(
                theirs.with_name(PREFIX + theirs.name),
                maxBytes=target.maxBytes,
                backupCount=target.backupCount,
                encoding="utf-8",
                delay=True,
            )
    return None
