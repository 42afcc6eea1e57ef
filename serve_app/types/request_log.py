"""Rows of an inference table, read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequests:
    """Which rows of a table are wanted."""

    folder: tuple[str, str, str]  # catalogue, schema and table
    endpoint: str  # rows of others in the same table are left out
    limit: int = 50
    after: str = ""  # the token of the page before; "": from the newest row on
    is_failed: bool = False  # only of requests without an answer of 2xx
    day: date | None = None  # of this day alone (UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Rows by column without bodies, the newest first."""

    rows: tuple[dict[str, Any], ...]
    next: str  # the token of the page after; "": this is the last one
