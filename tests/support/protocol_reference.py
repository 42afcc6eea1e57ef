"""Writes the tables of fields in docs/protocols.md: what each accepts and does, as the code says it.

    $ python -m tests.support.protocol_reference

Names of fields, the tests of the last column and all other text are left as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from serve_app.api.protocol.field_doc import FieldDoc
from tests.support.named_tests import ROOT
from tests.support.protocol_checks import BODIES, known_fields
from tests.support.protocol_tables import Row, rows

PATH: Final[Path] = ROOT / "docs" / "protocols.md"


def rewritten(document: str) -> str:
    """The document with the cells that the code knows. A field that it does not know is left as it is."""
    lines = document.splitlines()
    for row in rows(document):
        found = cells(row) if row.kind == "field" else None
        if found is not None:
            name, *_, tests = (cell.strip() for cell in lines[row.line].strip("|").split("|"))
            lines[row.line] = (
                "|" + "|".join(f" {cell} " if cell else " " for cell in (name, *found, tests)) + "|"
            )
    return "\n".join([*lines, ""])


def cells(row: Row) -> tuple[str, str] | None:
    """What a field accepts, and what it does; None: no body has it."""
    (name,) = row.names
    for route, bodies in BODIES.get(row.protocol, {}).items():
        if route not in row.heading.lower():
            continue
        words: dict[str, FieldDoc] = {}
        for prefix, body in bodies.items():
            words |= {prefix + field: doc for field, doc in body.docs().items()}
        if name in words:
            known_range = known_fields(row.protocol, route, bodies).get(name, "")
            return words[name].accepted(known_range), words[name].meaning
    return None


if __name__ == "__main__":
    PATH.write_text(rewritten(PATH.read_text("utf-8")), "utf-8")
