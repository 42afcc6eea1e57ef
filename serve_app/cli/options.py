"""Arguments and options that several commands have: files, and points in time (`7d` ago, or ISO)."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import click

DEPLOY_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_text(path: Path) -> str:
    """The text of a file that the user named; a ClickException says why it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from error
    except UnicodeDecodeError as error:
        raise click.FileError(str(path), "it is not UTF-8 text") from error


METAVAR: Final = "ISO|7d"
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def unix_seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """An option's callback: the time as Unix seconds.

    An ISO time without an offset is local time; a date stands for its first moment.
    """
    if value is None:
        return None
    if ago := _AGO.fullmatch(value):
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(value).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise click.BadParameter(
            f"{value!r} must be a time ago, such as 30m, 12h, 7d or 2w, or an ISO date or time, such as "
            "2026-03-01 or 2026-03-01T09:30+01:00"
        ) from error
