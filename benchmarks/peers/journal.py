"""Every figure of a run as a JSON line, written when it is known, so that a run that was cut goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.schedule import Batch

BATCH: Final = "batch"
START: Final = "start"
FAILURE: Final = "failure"
LIMITS: Final = "limits"
MACHINE: Final = "machine"
Record = dict[str, Any]


class Journal:
    """Records of one run; a line that a kill cut short is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[Record] = list(self._read()) if path.exists() else []

    def _read(self) -> Iterator[Record]:
        for line in self._path.read_text("utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def append(self, kind: str, **fields: Any) -> None:
        record = {"kind": kind, **fields}
        self.records.append(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not self._ends_with_a_line():
                file.write("\n")
            file.write(json.dumps(record) + "\n")

    def _ends_with_a_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read() == b"\n"

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def done(self) -> set[Batch]:
        """Batches without errors; those with some are tried again."""
        return {
            Batch(record["round"], record["model"], record["server"], record["mix"])
            for record in self.of(BATCH)
            if not record["errors"]
        }
