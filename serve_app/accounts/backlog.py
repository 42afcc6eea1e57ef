"""Lines of the usage journal that wait in memory until the disk takes them again.

A request has at most one line here, since each new line includes everything in the previous one.
Handles neither files nor locks.
"""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 32 * 2**20  # some 80,000 records: more than an hour at 20 requests a second


class Backlog:
    """Lines in the order of their arrival, with at most `max_bytes` in total."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lines: dict[str, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """The number of lines that wait."""
        return len(self._lines)

    def add(self, key: str, line: bytes) -> bool:
        """Keep `line`, which replaces an earlier line of the same `key`. Returns False if there is no room.

        A replacement always has room, so that a request whose beginning was kept also keeps its end.
        """
        before = self._lines.pop(key, None)
        if before is None and self._bytes + len(line) > self._max_bytes:
            return False
        self._lines[key] = line
        self._bytes += len(line) - (0 if before is None else len(before))
        return True

    def put_back(self, lines: list[tuple[str, bytes]]) -> None:
        """Keep `lines` before all others, except a line whose key has a newer line."""
        older = {key: line for key, line in lines if key not in self._lines}
        self._lines = older | self._lines
        self._bytes += sum(map(len, older.values()))

    def first(self) -> tuple[str, bytes]:
        """The oldest line and its key; there must be one."""
        return next(iter(self._lines.items()))

    def remove(self, key: str) -> None:
        """Forget the line of `key`, which must be there."""
        self._bytes -= len(self._lines.pop(key))
