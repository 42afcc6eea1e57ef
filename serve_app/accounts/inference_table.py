"""Inference tables: requests and answers in Parquet files, a folder for each table and day.

    ROOT/CATALOG/SCHEMA/PREFIX_payload/date=2026-01-31/part-<time>-<process>-<number>.parquet

The columns are those of Databricks' tables, followed by some of our own. A file gets its final name only
when it is complete. A separate thread writes, so adding a row never blocks. Rows that the disk refuses wait
in memory up to a limit, and `dropped` counts the rows beyond it.

Covered: full disks, several processes in one folder, readers at any time. Not covered: if the process is
killed, the rows in memory are lost, which are those of a few seconds.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from serve_app.accounts.request_log import read_page, read_row
from serve_app.types.payload import Payload
from serve_app.types.request_log import LoggedRequests, LogPage

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

FLUSH_S: Final = 5.0  # between two files of a table, and two attempts on a full disk
ROWS_AT_ONCE: Final = 1000  # as soon as this number of rows waits, they are written
BYTES_AT_ONCE: Final = 16 * 2**20
MAX_BYTES: Final = 64 * 2**20  # of rows that wait in memory
SWEEP_S: Final = 3600.0  # between two searches for old partitions
COMPLAIN_S: Final = 60.0
TABLE_SUFFIX: Final = "_payload"
_PARTITION: Final = "date="
_UNFINISHED: Final = ".tmp"
_DAY_S: Final = 86_400.0

# Values of `logging_error_codes`. Some are ours: Databricks' own codes are about size alone.
NOT_TEXT: Final = "BODY_NOT_TEXT"
NOT_MASKED: Final = "REQUEST_NOT_MASKED"

T = TypeVar("T")


class InferenceTables:
    """The tables of one process; an `api.backend.Payloads`."""

    def __init__(
        self, folder: Path, *, retention_days: int, max_bytes: int = MAX_BYTES, flush_s: float = FLUSH_S
    ) -> None:
        self._folder = folder
        self._retention = timedelta(days=retention_days)
        self._max_bytes = max_bytes
        self._flush_s = flush_s
        self._rows: list[Payload] = []
        self._bytes = 0
        self.dropped = 0  # rows that were lost for lack of memory
        self._lock = threading.Lock()
        self._some = threading.Event()  # there are rows to write
        self._wake = threading.Event()  # there are many rows, or no more will come
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._process = secrets.token_hex(6)
        self._number = 0
        self._swept = self._complained = float("-inf")
        self.problem: str | None = None  # why rows are not written at present
        if folder.is_dir():  # removes old partitions, even if no endpoint writes a table any more
            self._start()

    @property
    def waiting(self) -> int:
        """The number of rows in memory."""
        return len(self._rows)

    def add(self, row: Payload) -> None:
        """Write `row` soon. Never waits, never fails."""
        with self._lock:
            if self._is_closed or self._bytes + row.size > self._max_bytes:
                self.dropped += 1
                return
            self._rows.append(row)
            self._bytes += row.size
            is_first = len(self._rows) == 1
            is_much = len(self._rows) >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE
            if self._thread is None:
                self._start()
        if is_first:
            self._some.set()
        if is_much and self.problem is None:
            self._wake.set()

    def page(self, wanted: LoggedRequests) -> LogPage:
        return read_page(self._folder, wanted)

    def row(self, wanted: LoggedRequests, id: str) -> dict[str, Any] | None:
        return read_row(self._folder, wanted, id)

    def close(self) -> None:
        """Write the remaining rows. Rows that the disk refuses at this point are lost, and counted."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._some.set()
        self._wake.set()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="inference-tables", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._sweep()
            except OSError as error:
                logger.error("inference tables: old partitions stay: %s", error.strerror)
            if self._some.wait(SWEEP_S):
                self._wake.wait(self._flush_s)  # for more rows
                self._wake.clear()
                self._some.clear()
                self._write_all()
                if self._rows:  # new rows, or rows that the disk refused
                    self._some.set()
        self._write_all()
        with self._lock:
            self.dropped += len(self._rows)
            self._rows = []

    def _write_all(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
        left: list[Payload] = []
        for (folder, day), part in _parted(rows).items():
            try:
                self._write(self._folder.joinpath(*folder, f"{_PARTITION}{day.isoformat()}"), part)
                self.problem = None
            except OSError as error:
                left += part
                self._complain(error)
            except Exception:  # a bug of ours, or an extra that is not installed: no use in retrying
                logger.exception("inference tables: %d rows are lost", len(part))
                with self._lock:
                    self.dropped += len(part)
        with self._lock:
            self._rows = left + self._rows
            self._bytes = sum(row.size for row in self._rows)

    def _write(self, folder: Path, rows: Sequence[Payload]) -> None:
        """Write one new file. Raises OSError, and leaves no file in that case."""
        content = _parquet(rows)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._number += 1
        name = f"part-{int(time.time())}-{self._process}-{self._number}"
        unfinished = folder / f".{name}{_UNFINISHED}"
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(folder / f"{name}.parquet")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _complain(self, error: OSError) -> None:
        self.problem = error.strerror or type(error).__name__
        if time.monotonic() - self._complained >= COMPLAIN_S:
            self._complained = time.monotonic()
            logger.error("inference tables are not written: %s; %d rows wait", self.problem, self.waiting)

    def _sweep(self) -> None:
        """Remove the partitions that are too old, and files that a dead process left unfinished."""
        if time.monotonic() - self._swept < SWEEP_S:
            return
        self._swept = time.monotonic()
        oldest = datetime.now(UTC).date() - self._retention
        for partition in self._folder.glob(f"*/*/*{TABLE_SUFFIX}/{_PARTITION}*"):
            try:
                day = date.fromisoformat(partition.name.removeprefix(_PARTITION))
            except ValueError:  # not ours
                continue
            if day < oldest:
                shutil.rmtree(partition, ignore_errors=True)
                continue
            for unfinished in partition.glob(f".*{_UNFINISHED}"):
                if time.time() - unfinished.stat().st_mtime > _DAY_S:
                    unfinished.unlink(missing_ok=True)


def _parted(rows: Sequence[Payload]) -> Mapping[tuple[tuple[str, str, str], date], list[Payload]]:
    """The rows, grouped by table and day."""
    parts: dict[tuple[tuple[str, str, str], date], list[Payload]] = defaultdict(list)
    for row in rows:
        parts[row.folder, datetime.fromtimestamp(row.started, UTC).date()].append(row)
    return parts


def _parquet(rows: Sequence[Payload]) -> memoryview:
    """The bytes of a file."""
    import pyarrow  # an extra of 50 MiB: only gateways that write tables load it
    import pyarrow.parquet

    listed = [_columns(row) for row in rows]
    schema = _schema(pyarrow)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(listed, schema), sink, compression="zstd")
    return memoryview(sink.getvalue())


def _schema(pa: Any) -> pyarrow.Schema:
    return pa.schema(
        [
            ("request_date", pa.date32()),
            ("databricks_request_id", pa.string()),
            ("client_request_id", pa.string()),
            ("request_time", pa.timestamp("us", tz="UTC")),
            ("status_code", pa.int32()),
            ("sampling_fraction", pa.float64()),
            ("execution_duration_ms", pa.int64()),
            ("request", pa.string()),
            ("response", pa.string()),
            ("served_entity_id", pa.string()),
            ("logging_error_codes", pa.list_(pa.string())),
            ("requester", pa.string()),
            # and the columns that Databricks does not have
            ("endpoint_name", pa.string()),
            ("route", pa.string()),
            ("key_id", pa.string()),
            ("time_to_first_token_ms", pa.int64()),
            ("prompt_tokens", pa.int64()),
            ("cached_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
        ]
    )


def _columns(row: Payload) -> dict[str, Any]:
    codes = list(row.codes)
    request = _text(row.request, row.form.request, codes)
    response = _text(row.response, row.form.response, codes)
    if request is not None and row.redact is not None:
        request = _redacted(request, row.redact, codes)
    started = datetime.fromtimestamp(row.started, UTC)
    first_s = row.first_token_s
    return {
        "request_date": started.date(),
        "databricks_request_id": row.id,
        "client_request_id": row.client_id,
        "request_time": started,
        "status_code": row.status,
        "sampling_fraction": 1.0,
        "execution_duration_ms": round(row.total_s * 1e3),
        "request": request,
        "response": response,
        "served_entity_id": row.entity,
        "logging_error_codes": codes,
        "requester": row.requester,
        "endpoint_name": row.endpoint,
        "route": row.route,
        "key_id": row.key_id,
        "time_to_first_token_ms": None if first_s is None else round(first_s * 1e3),
        "prompt_tokens": row.usage.prompt_tokens,
        "cached_tokens": row.usage.cached_tokens,
        "completion_tokens": row.usage.generated_tokens,
    }


def _redacted(body: str, redact: Callable[[str], str], codes: list[str]) -> str | None:
    """The part of a body that may be kept; None, with a code added, if that part cannot be determined."""
    try:
        # A lone half of a surrogate pair, which JSON can write and UTF-8 cannot, stays an escape.
        return redact(body).encode("utf-8", "backslashreplace").decode()
    except Exception:
        logger.exception("inference tables: a body could not be masked, so it is left out")
        codes.append(NOT_MASKED)
        return None


def _text(body: T | None, read: Callable[[T], str], codes: list[str]) -> str | None:
    """A body as text; None, with a code added, if it cannot be read as text."""
    if body is None:
        return None
    try:
        return read(body)
    except Exception as error:
        if not isinstance(error, ValueError):
            logger.exception("inference tables: a body could not be read, so it is left out")
        codes.append(NOT_TEXT)
        return None
