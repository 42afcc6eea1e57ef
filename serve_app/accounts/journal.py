"""The usage journal: what every admitted request used, in append-only files of JSON lines.

One line when a request is admitted and one when it ends, both whole `UsageRecord`s:

    {"event":"open","id":"...","key_id":"alice","endpoint":"chat",...}
    {"event":"close","id":"...",...}

Each gateway process writes files of its own, `usage-<UTC start>-<process>.jsonl`, where
`<process>` is random and the same for all files of one process. While it lives it holds
an advisory lock (flock) on its first and its newest file, which is how `read` tells a
request that still runs from one whose gateway died.

Covered: the death of the process at any point, torn lines, full disks, readers at any time.
Not covered: the last second before a power failure; the removal of old files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from serve_app.types import UsageRecord

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 64 * 2**20  # some 85,000 requests: a size that tools still open
SYNC_S: Final = 1.0  # between two fsyncs; what a power failure may take
COMPLAIN_S: Final = 60.0  # between two log lines about a disk that refuses
CLOCK_SLACK_S: Final = 3_600.0  # by which file times and record times may disagree
LOST: Final = "lost"

_PREFIX: Final = "usage-"
_SUFFIX: Final = ".jsonl"
_OPEN: Final = b'{"event":"open",'
_CLOSE: Final = b'{"event":"close",'

_encoder = msgspec.json.Encoder()
_record_decoder: msgspec.json.Decoder[UsageRecord] = msgspec.json.Decoder(UsageRecord)


class _Event(msgspec.Struct):
    event: Literal["open", "close"]


_event_decoder: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)


class Journal:
    """Writes the files of one process; an `api.backend.Journal`.

    A call appends one line by one `write`, which ends in the page cache: 4 microseconds for
    380 bytes (ext4, median of 30 times 2,000 calls, 2 cores under other load). Once a second,
    if there was anything, a thread of its own has it written to the disk. Neither call
    raises: what the disk refuses is counted in `dropped`, and service goes on.

    Do not fork the process without exec: the child would hold the locks as well.
    """

    def __init__(self, folder: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        """Makes `folder`, for its owner only, if it is not there. Raises OSError if it cannot be written."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.dropped = 0  # lines that could not be written
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()  # of all below
        self._first = self._file = self._create()
        self._size = 0
        self._torn = False  # the file does not end with a newline
        self._rotated: list[int] = []  # to be synced, and closed but for the first
        self._complained = -COMPLAIN_S
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sync_often, name="usage-journal", daemon=True)
        self._thread.start()

    def opened(self, record: UsageRecord) -> None:
        """A request was admitted. See `api.backend.Journal`."""
        self._append(_OPEN, record)

    def closed(self, record: UsageRecord) -> None:
        """A request ended. See `api.backend.Journal`."""
        self._append(_CLOSE, record)

    def close(self) -> None:
        """Write all to the disk and release the locks: what is open is lost, later lines are dropped."""
        self._closing.set()
        self._dirty.set()
        self._thread.join()

    def _append(self, head: bytes, record: UsageRecord) -> None:
        try:
            line = head + _encoder.encode(record)[1:] + b"\n"
            with self._lock:
                self._write(line)
        except Exception as error:
            with self._lock:
                self.dropped += 1
            self._complain(error)

    def _write(self, line: bytes) -> None:
        if self._closing.is_set():
            raise ValueError("the journal is closed")
        if self._size + len(line) > self._max_file_bytes:
            self._rotate()
        if self._torn:
            line = b"\n" + line  # the torn line stays alone
        written = os.write(self._file, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(f"{written} of {len(line)} bytes were written")
        if not self._dirty.is_set():
            self._dirty.set()

    def _rotate(self) -> None:
        self._size = 0  # if it fails, the old file goes on for as long again
        try:
            file = self._create()
        except OSError as error:
            self._complain(error)
            return
        self._rotated.append(self._file)
        self._file, self._torn = file, False

    def _create(self) -> int:
        """A new file with its lock held; it gets its name only then, so that no reader sees it without."""
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = self._folder / f"{_PREFIX}{started}-{self._process}{_SUFFIX}"
        hidden = path.with_name(f".{path.name}")
        file = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(path)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        return file

    def _sync_often(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._sync()
            self._closing.wait(SYNC_S)
        self._sync()  # what was written since; from here on lines are refused
        for file in {self._first, self._file}:
            os.close(file)

    def _sync(self) -> None:
        self._dirty.clear()  # first: a line written from here on is for the next time
        with self._lock:
            rotated, self._rotated = self._rotated, []
            current = self._file
        for file in (*rotated, current):
            try:
                os.fsync(file)
            except OSError as error:
                self._complain(error)
            if file not in (self._first, current):
                os.close(file)

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            logger.warning("usage journal: %s; %d lines lost so far", error, self.dropped)


def read(folder: Path, *, since: float | None = None, until: float | None = None) -> Iterator[UsageRecord]:
    """Each request of the journals in `folder` once, as it ended; safe while they are written.

    `since` <= `started` < `until`, in Unix seconds. A request without an end is "lost" if its
    process is gone; if not, it still runs and is left out. Lines that are torn or not
    understood are skipped, and counted in the log unless they are the last of a file.
    Keeps the ids of one process's requests in memory. Raises OSError for what cannot be read.
    """
    # The order matters. Files are looked at once more after the locks: a process that is gone
    # by then writes no more, and has all its files in the second list.
    gone = _gone(_files(folder))
    for process, paths in _files(folder).items():
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


def _files(folder: Path) -> dict[str, list[Path]]:
    """The files of each process, oldest first."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}")):
        files.setdefault(path.stem.rpartition("-")[2], []).append(path)
    return files


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
