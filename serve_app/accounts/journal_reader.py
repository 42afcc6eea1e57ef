"""The usage journal, read: each request once, while gateways write and after they died."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from serve_app.accounts.journal_files import files_by_process
from serve_app.types import UsageRecord

logger = logging.getLogger(__name__)

CLOCK_SLACK_S: Final = 3_600.0  # by which file times and record times may disagree
LOST: Final = "lost"

_record_decoder: msgspec.json.Decoder[UsageRecord] = msgspec.json.Decoder(UsageRecord)


class _Event(msgspec.Struct):
    event: Literal["open", "close"]


_event_decoder: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)


def read(folder: Path, *, since: float | None = None, until: float | None = None) -> Iterator[UsageRecord]:
    """Each request of the journals in `folder` once, as it ended; safe while they are written.

    `since` <= `started` < `until`, in Unix seconds. A request without an end is "lost" if its
    process is gone; if not, it still runs and is left out. Lines that are torn or not
    understood are skipped, and counted in the log unless they are the last of a file.
    Keeps the ids of one process's requests in memory. Raises OSError for what cannot be read.
    """
    # The order matters. Files are looked at once more after the locks: a process that is gone
    # by then writes no more, and has all its files in the second list.
    gone = _gone(files_by_process(folder))
    for process, paths in files_by_process(folder).items():
        running: dict[str, UsageRecord] = {}
        ended: set[str] = set()
        for event, record in _lines(paths, since):
            if (since is not None and record.started < since) or (
                until is not None and record.started >= until
            ):
                continue
            if record.id in ended:
                continue
            if event == "close":
                ended.add(record.id)
                running.pop(record.id, None)
                yield record
            else:
                running[record.id] = record
        if process in gone:
            for record in running.values():
                yield replace(record, outcome=LOST)


def _gone(files: dict[str, list[Path]]) -> set[str]:
    """The processes that hold none of their locks any more."""
    return {process for process, paths in files.items() if not any(map(_is_locked, paths))}


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # removed by somebody
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers do not disturb each other
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _lines(paths: list[Path], since: float | None) -> Iterator[tuple[str, UsageRecord]]:
    for path in paths:
        try:
            if since is not None and path.stat().st_mtime < since - CLOCK_SLACK_S:
                continue  # all in it began earlier
            file = path.open("rb")
        except FileNotFoundError:
            continue
        bad = 0
        with file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # torn, or being written
                if line == b"\n":
                    continue
                try:
                    yield _event_decoder.decode(line).event, _record_decoder.decode(line)
                except msgspec.DecodeError:  # ValidationError is one
                    bad += 1
        if bad:
            logger.warning("usage journal: %d lines of %s are not understood", bad, path.name)
