"""Reads the usage journal: each request once, while gateways write it and after they died."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from serve_app.accounts.journal_files import SETTLE, files_by_process
from serve_app.accounts.merge import Known, lost, merge, settled
from serve_app.types import UsageRecord

logger = logging.getLogger(__name__)

CLOCK_SLACK_S: Final = 3_600.0  # file times and record times may differ by this

_record_decoder: msgspec.json.Decoder[UsageRecord] = msgspec.json.Decoder(UsageRecord)


class _Event(msgspec.Struct):
    event: Literal["open", "progress", "close", "settle"]


class _Part(msgspec.Struct):
    part: str


_part_decoder: msgspec.json.Decoder[_Part] = msgspec.json.Decoder(_Part)
_event_decoder: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)


def read(folder: Path, *, since: float | None = None, until: float | None = None) -> Iterator[UsageRecord]:
    """Each request of the journals in `folder` once, as it ended; safe while the journals are being written.

    `since` <= `started` < `until`, in Unix seconds. A request without an end is "lost" if its process is
    gone; it then gets the tokens of its last line, or more if replicas reported more for it. Requests of
    living processes are left out, since they still run. Lines that are torn or not understood are skipped,
    and counted in the log unless they are the last of a file. Keeps the ids of one process's requests in
    memory. Raises OSError if a file cannot be read.
    """
    # The order matters. Files are listed again after the locks were looked at: a process that was gone
    # by then writes no more, so the later list has all its files. And a settlement is the newest line
    # of its request.
    gone = gone_processes(files_by_process(folder))
    of_replicas = _settled(files_by_process(folder), since)
    for process, paths in files_by_process(folder).items():
        running: dict[str, UsageRecord] = {}
        ended: set[str] = set()
        for event, record in _lines(paths, since):
            if not _is_within(record, since, until) or record.id in ended:
                continue
            if event == "close":
                ended.add(record.id)
                running.pop(record.id, None)
                of_replicas.pop(record.id, None)
                yield record
            else:
                running[record.id] = record
        for record in running.values():
            known, more = lost(record), of_replicas.pop(record.id, None)
            if process in gone:
                yield (known if more is None else merge(known, more)).total()
    for known in of_replicas.values():  # of gateways whose own lines never reached the disk
        if _is_within(known.record, since, until):
            yield known.total()


def decoded(line: bytes) -> tuple[str, UsageRecord, str]:
    """Event, record and part of a line; the part is "" if absent. Raises msgspec.DecodeError."""
    event, record = _event_decoder.decode(line).event, _record_decoder.decode(line)
    return event, record, _part_decoder.decode(line).part if event == "settle" else ""


def _is_within(record: UsageRecord, since: float | None, until: float | None) -> bool:
    return (since is None or record.started >= since) and (until is None or record.started < until)


def _settled(files: dict[str, list[Path]], since: float | None) -> dict[str, Known]:
    """What replicas generated for requests of gateways that died, by the request's id."""
    found: dict[str, Known] = {}
    for paths in files.values():
        for line in _raw_lines(paths, since):
            if not line.startswith(SETTLE):
                continue
            try:
                _, record, part = decoded(line)
            except msgspec.DecodeError:  # counted when all lines are read
                continue
            known = settled(record, part)
            found[record.id] = known if record.id not in found else merge(found[record.id], known)
    return found


def gone_processes(files: dict[str, list[Path]]) -> set[str]:
    """The processes that no longer hold any of their locks."""
    return {process for process, paths in files.items() if not any(map(_is_locked, paths))}


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # removed by somebody
        return False
    except PermissionError:  # without access, it cannot be said to be gone
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers do not disturb each other
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _lines(paths: list[Path], since: float | None) -> Iterator[tuple[str, UsageRecord]]:
    """Event and record of each line that opens or closes a request."""
    for path in paths:
        bad = 0
        for line in _raw_lines([path], since):
            try:
                event, record, _ = decoded(line)
            except msgspec.DecodeError:  # ValidationError is one
                bad += 1
                continue
            if event != "settle":
                yield event, record
        if bad:
            logger.warning("usage journal: %d lines of %s are not understood", bad, path.name)


def _raw_lines(paths: list[Path], since: float | None) -> Iterator[bytes]:
    """Each whole line of the files that may contain requests begun at `since` or later."""
    for path in paths:
        try:
            if since is not None and path.stat().st_mtime < since - CLOCK_SLACK_S:
                continue  # everything in it began earlier
            file = path.open("rb")
        except FileNotFoundError:
            continue
        with file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # torn, or being written
                if line != b"\n":
                    yield line
