"""Inference tables read back: the newest rows page by page, or a single row by its id.

Rows are in the order in which they were written: by day, then by file, then by place in the file. A page's
token is the place of its last row, so rows that are written meanwhile change no page. Rows of the last
seconds may not be on the disk yet. Depends on the layout of `inference_table`; does not check who may read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serve_app.errors import InvalidField
from serve_app.types.request_log import LoggedRequests, LogPage

FILES_AT_ONCE: Final = 500  # read for one page; if rows are rare, a page may be short or empty
SHOWN: Final = (
    *("databricks_request_id", "client_request_id", "request_time", "status_code", "execution_duration_ms"),
    *("time_to_first_token_ms", "served_entity_id", "requester", "key_id", "route"),
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
)
BODIES: Final = ("request", "response", "logging_error_codes")
_ENDPOINT: Final = "endpoint_name"
_FILE: Final = re.compile(r"part-([0-9]{1,12})-[0-9a-f]+-([0-9]{1,12})\.parquet")
_TOKEN: Final = re.compile(r"(date=[0-9-]{10})/(part-[0-9a-f-]{1,60}\.parquet)/([0-9]{1,9})")

Place = tuple[str, int, int, str, int]  # day, time of writing, number, name of the file, row


def read_page(root: Path, wanted: LoggedRequests) -> LogPage:
    """See `api.backend.Payloads.page`."""
    after = _place_of(wanted.after) if wanted.after else None
    rows: list[dict[str, Any]] = []
    last: Place | None = None
    for number, (path, place) in enumerate(_files(root, wanted, after)):
        if number == FILES_AT_ONCE:
            return LogPage(rows=tuple(rows), next=_token(last))
        columns = _columns(path, (*SHOWN, _ENDPOINT))
        for row in reversed(range(len(columns[_ENDPOINT]))):
            last = (*place, row)
            if (after is not None and last >= after) or not _is_wanted(columns, row, wanted):
                continue
            rows.append({name: columns[name][row] for name in SHOWN})
            if len(rows) == wanted.limit:
                return LogPage(rows=tuple(rows), next=_token(last))
        last = (*place, 0)
    return LogPage(rows=tuple(rows), next="")


def read_row(root: Path, wanted: LoggedRequests, id: str) -> dict[str, Any] | None:
    """See `api.backend.Payloads.row`. Reads only as many of the newest files as a page needs."""
    for number, (path, _) in enumerate(_files(root, wanted, None)):
        if number == FILES_AT_ONCE:
            break
        ids = _columns(path, ("databricks_request_id", _ENDPOINT))
        for row, (found, endpoint) in enumerate(zip(*ids.values(), strict=True)):
            if (found, endpoint) == (id, wanted.endpoint):
                columns = _columns(path, (*SHOWN, *BODIES))
                return {name: values[row] for name, values in columns.items()}
    return None


def _is_wanted(columns: Mapping[str, Sequence[Any]], row: int, wanted: LoggedRequests) -> bool:
    status = columns["status_code"][row]
    return columns[_ENDPOINT][row] == wanted.endpoint and (not wanted.is_failed or not 200 <= status < 300)


def _files(
    root: Path, wanted: LoggedRequests, after: Place | None
) -> Iterator[tuple[Path, tuple[str, int, int, str]]]:
    """The files of a table with their places, newest first, starting with the file that contains `after`."""
    table = root.joinpath(*wanted.folder)
    pattern = "date=*" if wanted.day is None else f"date={wanted.day.isoformat()}"
    for partition in sorted(table.glob(pattern), reverse=True):
        if after is not None and partition.name > after[0]:
            continue
        places = [
            (partition.name, int(name[1]), int(name[2]), path.name)
            for path in partition.iterdir()
            if (name := _FILE.fullmatch(path.name))
        ]
        for place in sorted(places, reverse=True):
            if after is None or (*place, 0) < after:  # there are rows before `after` in it
                yield partition / place[3], place


def _columns(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a file; empty if the file has meanwhile been removed because of its age."""
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=list(names), partitioning=None)
    except FileNotFoundError:
        return {name: [] for name in names}
    return {name: table.column(name).to_pylist() for name in names}


def _token(place: Place | None) -> str:
    return "" if place is None else f"{place[0]}/{place[3]}/{place[4]}"


def _place_of(token: str) -> Place:
    """Raises InvalidField. A token is only compared, never used to open a file."""
    found = _TOKEN.fullmatch(token)
    name = None if found is None else _FILE.fullmatch(found[2])
    if found is None or name is None:
        raise InvalidField("page_token", "is none that a page of this table had")
    return found[1], int(name[1]), int(name[2]), found[2], int(found[3])
