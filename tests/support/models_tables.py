"""Writes the tables of docs/models.md: families that are served, families that are refused, and checkpoints.

    $ python -m tests.support.models_tables [NAME ...]

With names, only the rows of these families and checkpoints change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.checkpoints import CHECKPOINTS, checkpoint_row
from tests.support.families import families, judge_apart, table_row

PAGE: Final = Path(__file__).parents[2] / "docs" / "models.md"
# The first cells of the tables' headers, by the outcome of a family.
HEADERS: Final = {
    "checkpoint": "| checkpoint | served |",
    "served": "| family | class | layers |",
    "refused": "| family | class | why |",
}


def name_of(line: str) -> str | None:
    """The name in the first cell of a row; None for any other line."""
    found = re.match(r"\| `([^`]+)` \| ", line)
    return found and found[1]


def documented(document: str) -> dict[str, str]:
    """The rows of all three tables by name."""
    return {name: line for table in HEADERS for name, line in _rows(document.splitlines(), table)}


def rewritten(document: str, found: Mapping[str, tuple[str, str]]) -> str:
    """The document with new rows. `found`: name -> the key of its table in HEADERS, and its row."""
    lines = document.splitlines()
    order = {name: place for place, name in enumerate((*CHECKPOINTS, *families()))}
    for table in HEADERS:
        rows = list(_rows(lines, table))
        kept = {name: line for name, line in rows if name not in found and name in order}
        kept |= {name: row for name, (where, row) in found.items() if where == table}
        first = _first(lines, table)
        lines[first : first + len(rows)] = [kept[name] for name in sorted(kept, key=order.__getitem__)]
    return "\n".join([*lines, ""])


def _rows(lines: list[str], table: str) -> Iterator[tuple[str, str]]:
    """The name and the line of each row of a table."""
    for line in lines[_first(lines, table) :]:
        name = name_of(line)
        if name is None:
            return
        yield name, line


def _first(lines: list[str], table: str) -> int:
    """The place of a table's first row, after its header and a line of dashes."""
    return next(i for i, line in enumerate(lines) if line.startswith(HEADERS[table])) + 2


def _found(name: str) -> tuple[str, str]:
    if name in CHECKPOINTS:
        return "checkpoint", checkpoint_row(name)
    verdict = judge_apart(name)
    if verdict.outcome not in HEADERS:
        raise SystemExit(f"{name}: {verdict.reason}")
    return verdict.outcome, table_row(verdict)


if __name__ == "__main__":
    for name in sys.argv[1:] or (*CHECKPOINTS, *families()):
        PAGE.write_text(rewritten(PAGE.read_text("utf-8"), {name: _found(name)}), "utf-8")
