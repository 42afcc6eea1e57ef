"""Follows all journals of a folder and yields each request's end once, even across restarts of the reader.

`next` returns new lines, and `commit` records that they arrived. Lines without a commit are returned
again after a restart, so the receiver must count each request once. The commits are kept in the file
`.shipped.json`: for each process, the oldest line that must be read again after a restart, for example a
line of a request that is still running.

One reader at a time: `elect` takes a lock in the folder. Handles files, but not where the records go.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from serve_app.accounts.journal_files import files_by_process
from serve_app.accounts.journal_reader import decoded, gone_processes
from serve_app.types import UsageRecord

logger = logging.getLogger(__name__)

CURSOR: Final = ".shipped.json"
LOCK: Final = ".shipping.lock"
LINES_AT_ONCE: Final = 500  # some 200 kB


class Place(msgspec.Struct, frozen=True):
    """A line in the files of one process."""

    file: str
    offset: int  # bytes

    def order(self) -> tuple[str, int]:
        return self.file, self.offset  # ordered by time, with which names of files begin


@dataclass(slots=True)
class Batch:
    """New records. `marks`: the place in each process's files up to which the records were read."""

    ended: list[UsageRecord] = field(default_factory=list)
    lost: list[UsageRecord] = field(default_factory=list)
    settled: list[tuple[UsageRecord, str]] = field(default_factory=list)  # with the part
    marks: dict[str, Place] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)  # after the newest line of each process
    over: set[str] = field(default_factory=set)  # processes that ended and whose lines have all been read
    is_full: bool = False  # there may be more, even if this batch has nothing to ship

    def __len__(self) -> int:
        return len(self.ended) + len(self.lost) + len(self.settled)


@dataclass(slots=True)
class _Process:
    place: Place | None = None  # of the next line to read; None: the first line
    running: dict[str, tuple[UsageRecord, Place]] = field(default_factory=dict)  # with the newest line

    def mark(self) -> Place | None:
        """The oldest line that must be read again after a restart."""
        places = [place for _, place in self.running.values()]
        if self.place is not None:
            places.append(self.place)
        return min(places, key=Place.order, default=None)


class JournalTail:
    """The reader of one folder. Its methods read files, so none may be called from an event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._processes: dict[str, _Process] = {}
        self._over: set[str] = set()
        self._marks: dict[str, Place] = {}
        self._arrived: dict[str, Place] = {}  # after the newest line that arrived
        self._unread: set[str] = set()  # processes with a file that cannot be read, which the log says

    @property
    def is_elected(self) -> bool:
        return self._lock is not None

    def elect(self) -> bool:
        """Become the folder's only reader, until `close` or the process ends. Returns whether it did."""
        if self._lock is not None:
            return True
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._lock = file
        self._marks = self._load()
        self._processes = {process: _Process(place) for process, place in self._marks.items()}
        self._arrived = {**self._marks}
        return True

    def close(self) -> None:
        """Let another reader follow the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def next(self, limit: int = LINES_AT_ONCE) -> Batch:
        """The lines since the last call, about `limit` at most.

        A file that cannot be read delays only the lines of its own process. Raises OSError for the folder.
        """
        # A process that is gone by now writes no more, so the files that are listed later are all it has.
        gone = gone_processes(
            {p: paths for p, paths in files_by_process(self._folder).items() if p not in self._over}
        )
        batch = Batch()
        for name, paths in files_by_process(self._folder).items():
            if name in self._over:
                continue
            process = self._processes.setdefault(name, _Process())
            try:
                limit -= self._read(process, paths, batch, limit)
            except OSError as error:
                self._complain(name, error)
                continue
            self._unread.discard(name)
            if limit <= 0:
                batch.is_full = True
                return self._marked(batch)
            if name in gone:
                batch.lost += [record for record, _ in process.running.values()]
                process.running.clear()
                batch.over.add(name)
        return self._marked(batch)

    def commit(self, batch: Batch) -> None:
        """Record that `batch`, the newest one, has arrived.

        Raises OSError; a restart may then return parts of the batch again.
        """
        self._over |= batch.over
        self._arrived = batch.places
        for name in batch.over:
            self._processes.pop(name, None)
        if batch.marks == self._marks:
            return
        self._marks = batch.marks
        temporary = self._folder / f"{CURSOR}.new"
        temporary.write_bytes(msgspec.json.encode(batch.marks))
        temporary.rename(self._folder / CURSOR)

    def behind(self) -> int:
        """Number of journal bytes that have not arrived yet; 0 for a reader that is not elected."""
        if self._lock is None:
            return 0
        return sum(
            _size_after(paths, self._arrived.get(name))
            for name, paths in files_by_process(self._folder).items()
            if name not in self._over
        )

    def remove_arrived(self, before: float) -> int:
        """Remove files that have arrived whole and were last written before `before` (Unix seconds).

        Returns the number of removed files. Files with a line that must be read again after a restart are
        kept, and so is the newest file of a live process. Raises OSError.
        """
        removed = 0
        for name, paths in files_by_process(self._folder).items() if self._lock is not None else ():
            mark = self._marks.get(name)
            for path in paths:
                has_arrived = name in self._over or (mark is not None and path.name < mark.file)
                if has_arrived and path.stat().st_mtime < before:
                    path.unlink()
                    removed += 1
        return removed

    def _complain(self, process: str, error: OSError) -> None:
        if process not in self._unread:
            self._unread.add(process)
            logger.warning("usage journal: what is in %s is not shipped: %s", error.filename, error.strerror)

    def _marked(self, batch: Batch) -> Batch:
        there = files_by_process(self._folder)
        kept = {name: place for name, place in self._marks.items() if name in there and name in self._over}
        marks = {name: process.mark() for name, process in self._processes.items() if name in there}
        batch.places = {name: each.place for name, each in self._processes.items() if each.place is not None}
        batch.marks = kept | {name: place for name, place in marks.items() if place is not None}
        return batch

    def _read(self, process: _Process, paths: list[Path], batch: Batch, limit: int) -> int:
        """Read at most `limit` new lines. Returns their number."""
        count = bad = 0
        for path in paths:
            place = process.place
            if place is not None and path.name < place.file:
                continue
            offset = place.offset if place is not None and path.name == place.file else 0
            for line, at, end in _lines(path, offset):
                if count >= limit:
                    break
                count += 1
                process.place = Place(path.name, end)
                try:
                    _take(process, batch, line, Place(path.name, at))
                except msgspec.DecodeError:  # ValidationError is one
                    bad += 1
            if count >= limit:
                break
        if bad:
            logger.warning("usage journal: %d lines are not understood, and not shipped", bad)
        return count

    def _load(self) -> dict[str, Place]:
        try:
            return msgspec.json.decode((self._folder / CURSOR).read_bytes(), type=dict[str, Place])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("usage journal: %s is not read, so all is shipped again: %s", CURSOR, error)
            return {}


def _take(process: _Process, batch: Batch, line: bytes, place: Place) -> None:
    """Raises msgspec.DecodeError."""
    event, record, part = decoded(line)
    if event == "settle":
        batch.settled.append((record, part))
    elif event == "close":
        process.running.pop(record.id, None)
        batch.ended.append(record)
    else:
        process.running[record.id] = (record, place)


def _lines(path: Path, offset: int) -> Iterator[tuple[bytes, int, int]]:
    """Each whole line from `offset` on, with the offsets at which it begins and ends."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # removed by somebody
        return
    with file:
        if offset > os.fstat(file.fileno()).st_size:  # somebody cut it
            offset = 0
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break  # torn, or being written
            yield line, offset, offset + len(line)
            offset += len(line)


def _size_after(paths: Sequence[Path], place: Place | None) -> int:
    """Bytes in the files of one process after `place`; if that is None, the bytes of all its files."""
    size = 0
    for path in paths:
        if place is not None and path.name < place.file:
            continue
        skipped = place.offset if place is not None and path.name == place.file else 0
        with contextlib.suppress(FileNotFoundError):  # removed by somebody
            size += max(0, path.stat().st_size - skipped)
    return size
