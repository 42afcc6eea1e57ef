"""The format that the writer and the reader of the usage journal share: names of files, kinds of lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PREFIX: Final = "usage-"
SUFFIX: Final = ".jsonl"

OPEN: Final = b'{"event":"open",'
PROGRESS: Final = b'{"event":"progress",'
CLOSE: Final = b'{"event":"close",'
SETTLE: Final = b'{"event":"settle",'  # then `"part":"..."`


def files_by_process(folder: Path) -> dict[str, list[Path]]:
    """The files of each process, oldest first."""
    files: dict[str, list[Path]] = {}
    for name in journal_names(folder):
        process = name.removesuffix(SUFFIX).rpartition("-")[2]
        files.setdefault(process, []).append(folder / name)
    return files


def journal_names(folder: Path) -> list[str]:
    """The names of all files, oldest first; none if the folder does not exist."""
    try:
        return sorted(name for name in os.listdir(folder) if is_journal(name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def sizes(folder: Path) -> dict[str, int]:
    """The size of each file in bytes, by name. Raises OSError."""
    with os.scandir(folder) as found:
        return {each.name: each.stat().st_size for each in found if is_journal(each.name)}


def is_journal(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)
