"""The usage journal: what every admitted request used, in append-only files of JSON lines.

A request has a line when it is admitted and a line when it ends, each a whole `UsageRecord`:

    {"event":"open","id":"...","key_id":"alice","endpoint":"chat",...}
    {"event":"close","id":"...",...}

Before the client of a stream gets its first token, and every second after that, a line records its usage:

    {"event":"progress","id":"...",...}

If a gateway is killed, its requests are not closed. Another gateway then writes what replicas generated for
its open requests, one line per prompt (`part`):

    {"event":"settle","part":"...","id":"...",...}

Each gateway process writes files of its own, `usage-<UTC start>-<process>.jsonl`, where
`<process>` is random and the same for all files of one process. While the process lives, it holds an
advisory lock (flock) on its first and its newest file. By these locks, `journal_reader.read` tells a running
request from a request whose gateway died.

A line that the disk refuses waits in memory until the disk takes lines again. When an fsync fails, the lines
it covered are written to the same place again. When somebody deletes or moves the newest file, a new one
begins. So no record is written twice, and only the records that `dropped` counts are lost.

Covered: the death of the process at any point, torn lines, full disks, failed fsyncs, files
and folders that go away, readers at any time. Not covered: lines that wait in memory when the process is
killed; the last second before a power failure; the removal of old files (`journal_tail`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from serve_app.accounts.backlog import MAX_BYTES, Backlog
from serve_app.accounts.journal_files import CLOSE, OPEN, PREFIX, PROGRESS, SETTLE, SUFFIX
from serve_app.types import UsageRecord

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 64 * 2**20  # some 85,000 requests: small enough for tools to open
SYNC_S: Final = 1.0  # between two fsyncs (what a power failure may take), and two attempts on a full disk
COMPLAIN_S: Final = 60.0  # between two log lines about a disk that refuses
LINES_AT_ONCE: Final = 256  # of the backlog, then others may write: after a millisecond

_encoder = msgspec.json.Encoder()


class Journal:
    """Writes the files of one process; an `api.backend.Journal`.

    A call appends one line with a single `write`, which ends in the page cache: 4 microseconds for
    380 bytes (ext4, median of 30 times 2,000 calls, 2 cores under other load). Once a second, if there are
    new lines, a separate thread flushes them to the disk. A call neither raises nor waits for the disk: see
    `problem`, `waiting` and `dropped`.

    Do not fork the process without exec: the child would hold the locks as well.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_backlog_bytes: int = MAX_BYTES,
        on_closed: Callable[[str], None] = lambda record_id: None,
    ) -> None:
        """Makes `folder`, for its owner only, if it does not exist. `on_closed` gets each closed record.

        While nothing can be written to `folder`, records wait in memory: see `problem`.
        """
        self.dropped = 0  # records of ended requests that neither the disk nor the memory had room for
        self.problem: str | None = None  # why records cannot be written; None: they can
        self._on_closed = on_closed
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._max_backlog_bytes = max_backlog_bytes
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()  # protects all the attributes below
        self._backlog = Backlog(max_backlog_bytes)
        self._first: int | None = None  # the first file, held open for its lock
        self._file: int | None = None  # the newest file; None: there is no space for one yet
        self._path = folder
        self._named = datetime.min.replace(tzinfo=UTC)  # the time in the newest file's name
        self._size = 0
        self._grace = 0  # bytes beyond `max_file_bytes`, while there can be no other file
        self._rest = b""  # the end of the file's last line, not written yet
        # The file's lines after the byte `_durable`, which no fsync has confirmed yet.
        self._unsure: deque[tuple[str, bytes]] = deque()
        self._unsure_bytes = 0
        self._durable = 0
        self._rotated: list[int] = []  # still to be synced, and closed unless it is the first
        self._complained = -COMPLAIN_S
        self._dirty = threading.Event()
        self._closing = threading.Event()
        try:
            self._start_file()
        except OSError as error:
            self._fail(error)
            self._dirty.set()
        self._thread = threading.Thread(target=self._write_often, name="usage-journal", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Lines in memory, which the disk has not taken yet."""
        return len(self._backlog) + bool(self._rest)

    def opened(self, record: UsageRecord) -> None:
        """A request was admitted. See `api.backend.Journal`."""
        self._append(OPEN, record.id, record)

    def progressed(self, record: UsageRecord) -> None:
        """A request has used this much so far. See `api.backend.Journal`."""
        self._append(PROGRESS, record.id, record)

    def closed(self, record: UsageRecord) -> None:
        """A request ended. See `api.backend.Journal`."""
        self._append(CLOSE, record.id, record)
        self._on_closed(record.id)

    def settled(self, record: UsageRecord, part: str) -> None:
        """A replica reports what it generated for a request of a process that died.

        `part` is the id of one prompt of the request as the replica knows it. The tokens of several
        prompts add up; a line that is written twice counts once. Of `PROMPT`, `PROMPT~1`, `PROMPT~2` the last
        report counts: a replica that continues an answer reports the whole answer.
        """
        head = SETTLE + b'"part":' + _encoder.encode(part) + b","
        self._append(head, f"{record.id}/{part}", record)

    def close(self) -> None:
        """Write all lines to the disk and release the locks. Open requests and later lines count as lost."""
        self._closing.set()
        self._dirty.set()
        self._thread.join()

    def _append(self, head: bytes, key: str, record: UsageRecord) -> None:
        kept = False
        try:
            line = head + _encoder.encode(record)[1:] + b"\n"
            with self._lock:
                kept = self._take(key, line)
        except Exception as error:  # the record is no JSON
            self._complain(str(error))
        if not kept and head not in (OPEN, PROGRESS):  # losing those is no harm: the end may still be written
            with self._lock:
                self.dropped += 1
            self._complain(self.problem or "the journal is closed")

    def _take(self, key: str, line: bytes) -> bool:
        """Write `line`, or keep it in memory. Returns False if neither is possible."""
        if self._closing.is_set():
            return False
        if not self.waiting:
            try:
                self._write(key, line)
                return True
            except OSError as error:
                self._fail(error)
        kept = self._backlog.add(key, line)
        self._dirty.set()
        return kept

    def _write(self, key: str, line: bytes) -> None:
        """Append `line`; part of it may be left in `_rest`. Raises OSError if no part of it was written."""
        if self._rest:
            self._write_rest()
        if self._file is None or (self._size and self._size + len(line) > self._max_file_bytes + self._grace):
            self._rotate()
        written = self._write_bytes(line)
        self._rest = line[written:]
        if self._rest:  # most likely the disk is full
            try:
                self._write_rest()
            except OSError as error:
                self._fail(error)
        self._unsure.append((key, line))
        self._unsure_bytes += len(line)
        while self._unsure_bytes > self._max_backlog_bytes:  # fsync has failed for a long time
            self._confirm(1)
        if not self._dirty.is_set():
            self._dirty.set()

    def _write_rest(self) -> None:
        while self._rest:
            self._rest = self._rest[self._write_bytes(self._rest) :]

    def _write_bytes(self, data: bytes) -> int:
        if self._file is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(self._file, data)
        self._size += written
        return written

    def _confirm(self, count: int) -> None:
        """Forget the first `count` lines that no fsync has confirmed."""
        for _ in range(count):
            size = len(self._unsure.popleft()[1])
            self._unsure_bytes -= size
            self._durable += size

    # --- files -----------------------------------------------------------------------

    def _rotate(self) -> None:
        """Continue in a new file. If that fails, the old file may grow to twice its size."""
        try:
            self._start_file()
        except OSError as error:
            if self._file is None:
                raise
            self._grace = self._size
            self._complain(str(error))

    def _start_file(self) -> None:
        path, file = self._create()
        if self._file is not None:
            self._rotated.append(self._file)
        if self._first is None:
            self._first = file
        self._file, self._path = file, path
        self._size = self._durable = self._unsure_bytes = 0
        self._grace = 0
        self._rest = b""
        self._unsure.clear()

    def _create(self) -> tuple[Path, int]:
        """A new file with its lock held. It gets its name last, so that no reader sees it unlocked."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Readers take a process's files in the order of their names, even if the clock was set back.
        self._named = max(datetime.now(UTC), self._named + timedelta(microseconds=1))
        started = self._named.strftime("%Y%m%dT%H%M%S.%fZ")
        path = self._folder / f"{PREFIX}{started}-{self._process}{SUFFIX}"
        hidden = path.with_name(f".{path.name}")
        file = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(path)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        return path, file

    def _follow(self) -> None:
        """Begin a new file if there is none yet, or if the newest was deleted, moved or cut. Raises OSError.

        If the file was deleted, lines that no fsync has confirmed are written again; if it was moved, only
        the incomplete last line is.
        """
        if self._file is None:
            self._start_file()
            return
        status = os.fstat(self._file)
        is_whole = status.st_nlink > 0 and status.st_size == self._size
        if is_whole and _is(self._path, status):
            return
        again = list(self._unsure)
        if is_whole:
            again = again[-1:] if self._rest else []
        self._start_file()
        self._backlog.put_back(again)
        logger.warning("usage journal: somebody removed or changed its newest file; a new one begins")

    # --- the thread --------------------------------------------------------------------

    def _write_often(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()  # first, so that a line written from here on is flushed next time
            self._bring_to_disk()
            self._closing.wait(SYNC_S)
        self._bring_to_disk()  # lines written since then; from here on lines are refused
        if self.waiting:
            self.dropped += self.waiting
            logger.error("usage journal: %d records are lost with this process", self.waiting)
        for file in {self._first, self._file, *self._rotated}:
            if file is not None:
                os.close(file)

    def _bring_to_disk(self) -> None:
        """Write the waiting lines, and fsync, as far as the disk accepts them."""
        problem = None
        for step in (self._flush, self._sync):
            try:
                step()
            except OSError as error:
                problem = error
        with self._lock:
            if problem is not None:
                self._fail(problem)
                self._dirty.set()  # try again in a second
            elif self.waiting:
                self._dirty.set()
            elif self.problem is not None:
                logger.warning("usage journal: all is written again; %d records were lost", self.dropped)
                self.problem = None

    def _flush(self) -> None:
        """Write the backlog. Raises OSError, and keeps the lines that were not written."""
        with self._lock:
            self._follow()
        while True:
            with self._lock:
                if self._rest:
                    self._write_rest()
                for _ in range(min(LINES_AT_ONCE, len(self._backlog))):
                    key, line = self._backlog.first()
                    self._write(key, line)
                    self._backlog.remove(key)
                if not self.waiting:
                    return

    def _sync(self) -> None:
        """Raises OSError when lines may not be on the disk; writing them is then tried again."""
        with self._lock:
            rotated, self._rotated = self._rotated, []
            file, path, durable = self._file, self._path, self._durable
            lines = list(self._unsure)[: -1 if self._rest else None]
        for old in rotated:
            try:
                os.fsync(old)
            except OSError as error:
                self._complain(str(error))
            if old != self._first:
                os.close(old)
        if file is None:
            return
        try:
            os.fsync(file)
        except OSError as error:
            # The system may have given up: its copies of the lines count as written, but are not on the disk.
            logger.warning("usage journal: fsync: %s; its lines are written again", error)
            _write_again(path, os.fstat(file), b"".join(line for _, line in lines), durable)
        with self._lock:
            if file == self._file:
                self._confirm(len(lines))

    def _fail(self, error: OSError) -> None:
        self.problem = f"{error.filename or self._path}: {error.strerror or type(error).__name__}"
        self._complain(self.problem)

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            logger.warning(
                "usage journal: %s; %d records wait in memory, %d are lost",
                reason,
                self.waiting,
                self.dropped,
            )


def _is(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


def _write_again(path: Path, status: os.stat_result, data: bytes, offset: int) -> None:
    """Write `data` at `offset` of the file with this `path` and `status`, and fsync. Raises OSError.

    The file is opened anew, since a file opened for appending cannot be written at an offset.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        if not os.path.samestat(os.fstat(file), status):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written
        os.fsync(file)
    finally:
        os.close(file)
