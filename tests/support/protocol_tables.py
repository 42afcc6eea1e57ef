"""The tables of docs/protocols.md: rows with the tests that they name.

A section `## PROTOCOL` has tables below headings `### ...`. The last column of a table names tests,
in full or by a short name of the list `- **name**: tests` that stands before it in the section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tests.support.named_tests import REFERENCE

_CODE: Final = re.compile(r"`([^`]+)`")
_SHORT: Final = re.compile(r"- \*\*([\w-]+)\*\*: (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    line: int  # of the document, from 0
    protocol: str
    heading: str
    kind: str  # of the table: the head of its first column
    names: tuple[str, ...]  # what the first column has as code, or else its text
    cells: tuple[str, ...]  # the others but for the last
    tests: tuple[str, ...]
    unknown: tuple[str, ...] = field(default=())  # short names of the last column that nothing explains

    @property
    def place(self) -> str:
        return f"{self.protocol}, {self.heading}, {', '.join(self.names)}"


def rows(document: str) -> Iterator[Row]:
    """Every row of every table whose last column is called `test`."""
    protocol = heading = kind = ""
    short: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(document.splitlines()):
        if line.startswith("## "):
            protocol, heading, short = line[3:], "", {}
        elif line.startswith("### "):
            heading = line[4:]
        elif found := _SHORT.fullmatch(line):
            short[found[1]] = tuple(REFERENCE.findall(found[2]))
        if not line.startswith("|"):
            kind = ""
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not kind:
            kind = cells[0] if cells[-1] == "test" else "-"
        elif kind != "-" and not set(line) <= set("|- "):
            yield replace(_row(protocol, heading, kind, cells, short), line=number)


def _row(protocol: str, heading: str, kind: str, cells: list[str], short: dict[str, tuple[str, ...]]) -> Row:
    last = cells[-1]
    words = re.findall(r"[\w-]+", REFERENCE.sub("", last))
    named = [test for word in words for test in short.get(word, ())]
    return Row(
        line=0,
        protocol=protocol,
        heading=heading,
        kind=kind,
        names=tuple(_CODE.findall(cells[0])) or (cells[0],),
        cells=tuple(cells[1:-1]),
        tests=(*named, *REFERENCE.findall(last)),
        unknown=tuple(word for word in words if word not in short),
    )
