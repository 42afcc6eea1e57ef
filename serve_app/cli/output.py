"""The output of commands: tables for people, and text without control characters for the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import click
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 100_000  # more than any line of a table
INTERRUPTED: Final = 130  # the exit status after Ctrl-C, as in shells
format_option: Final = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
# Escape sequences in a model's words or a server's names could move the cursor, or do worse.
_CONTROLS: Final = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
_TEXT_CONTROLS: Final = {code: None for code in _CONTROLS if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` without control characters, except for line breaks and tabs."""
    return text.translate(_TEXT_CONTROLS)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Print columns headed in capitals; those named in `right` are aligned to the right.

    In a terminal the columns fit its width. Outside a terminal, each row is one line, however long.
    """
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in header:
        side: JustifyMethod = "right" if title in right else "left"
        table.add_column(Text(title.upper()), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.translate(_CONTROLS)) for cell in row))
    with console.capture() as printed:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def print_json(value: object) -> None:
    """Print `value` in a form for programs."""
    click.echo(json.dumps(value, indent=2))


def print_note(text: str) -> None:
    """Print a line that is not part of the results: on standard error, dimmed in a terminal."""
    Console(stderr=True, soft_wrap=True).print(Text(text, style="dim"))


def number(value: float) -> str:
    """A count or an amount with separators: `12,345`, `0.5`, at most six decimals."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def option_group(*given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that gives a command these options, in their order."""

    def decorated(command: Any) -> Any:
        for option in reversed(given):
            command = option(command)
        return command

    return decorated


def three_digits(value: float) -> str:
    """`number` applied to a value that was rounded to three significant digits."""
    return number(float(f"{value:.3g}"))


def rounded_down(value: float, digits: int = 3) -> str:
    """A positive number rounded down to its first digits, for YAML: `51900` for 51987.3, `7.12` for 7.128."""
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.floor(value / step) * step:.{max(0, -round(math.log10(step)))}f}"
