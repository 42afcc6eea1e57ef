"""The wall clock of a family of processes, which a test sets: `shifted_clock.c`, preloaded into them."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_suffix(".c")


class ShiftedClock:
    """A clock that begins as it is in truth."""

    def __init__(self, folder: Path) -> None:
        """Skips where there is no compiler of C."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no compiler of C")
        self._file, library = folder / "clock", folder / "clock.so"
        self.jump(0)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        self.environ = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the truth, or behind it."""
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:  # in place: it is mapped
            file.write(struct.pack("<q", seconds))
