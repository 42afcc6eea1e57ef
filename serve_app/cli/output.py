"""What commands print: tables for people, and text that cannot steer a terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

GAP: Final = "  "
# Escape sequences in a model's words or a server's names would move the cursor or worse.
_CONTROLS: Final = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
_TEXT_CONTROLS: Final = {code: None for code in _CONTROLS if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` without control characters, but with its lines and tabs."""
    return text.translate(_TEXT_CONTROLS)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns as wide as their widest cell, headed in capitals; those named in `right` end flush."""
    cells = [
        [title.upper() for title in header],
        *([cell.translate(_CONTROLS) for cell in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        GAP.join(
            cell.rjust(width) if title in right else cell.ljust(width)
            for title, cell, width in zip(header, row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def number(value: float) -> str:
    """A count or an amount with separators: `12,345`, `0.5`, at most six decimals."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def rounded_down(value: float, digits: int = 3) -> str:
    """A positive number to its first digits, as YAML reads it: `51900` for 51987.3, `7.12` for 7.128."""
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.floor(value / step) * step:.{max(0, -round(math.log10(step)))}f}"
