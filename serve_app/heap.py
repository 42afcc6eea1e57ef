"""The heap of a process that lives long: freed memory goes back to the system, and garbage is found quickly.

Knows glibc and CPython; any other library keeps its own habits.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# From <malloc.h>.
_M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 128 * 1024


def map_large_blocks() -> None:
    """Give each block above `LARGE_BYTES` pages of its own, which go back when it is freed.

    glibc does so at first, but takes the first large block that is freed for a habit: from then on
    blocks of that size lie in the heap between small ones. After bodies of some megabytes the heap
    of a busy gateway grows by a megabyte a minute, though what lives in it stays the same.
    Not for processes that compute: fresh pages for each tensor cost more than they save.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    except (OSError, AttributeError):
        return


@contextmanager
def collects_later() -> Iterator[None]:
    """Inside, Python looks for no garbage in cycles. For imports, which make many objects that all stay.

    The looks take a fifth of the time in which torch and transformers are imported.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def settle() -> None:
    """Take what is there now, which lives as long as the process, out of the sight of the garbage collector.

    Call it at the end of a start. A full collection looks at every object, and everything else waits for it:
    a tenth of a second with the quarter of a million objects of a gateway's imports.
    """
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Give freed memory back to the system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
