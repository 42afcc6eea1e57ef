"""A small file system that a test can fill up to its last byte."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


@contextmanager
def small_disk(folder: Path, size: int, options: str = "exec") -> Iterator[Path]:
    """`folder`, with a file system of `size` bytes mounted on it. Skips where mounting is not permitted.

    `options`: further ones of `mount`, with commas between.
    """
    folder.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},{options}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"mounting is not permitted here; run as root: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all that is left of its space."""
    with (folder / FILLER).open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def take_inodes(folder: Path) -> None:
    """Make empty files until no more can be made."""
    try:
        for number in range(100_000):
            (folder / f"{FILLER}-{number}").touch()
    except OSError:
        pass


def free(folder: Path) -> None:
    """Give back what `fill` and `take_inodes` took."""
    for path in folder.glob(f"{FILLER}*"):
        path.unlink()
