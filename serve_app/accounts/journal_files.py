"""What the writer and the reader of the usage journal agree on: names of files, kinds of lines."""

from __future__ import annotations

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
    for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
        files.setdefault(path.stem.rpartition("-")[2], []).append(path)
    return files
