"""The heap of a long-lived process: freed memory goes back to the system, and garbage is found quickly.

Handles glibc and CPython; other C libraries and interpreters are left as they are.
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
    """Give pages of its own to each block above `LARGE_BYTES`; freeing the block returns them to the system.

    glibc does so at first, but raises its threshold when a large block is freed: from then on, blocks of
    that size are placed in the heap between small ones. After bodies of some megabytes, the heap of a busy
    gateway then grows by a megabyte a minute, although the live objects in it stay the same. Do not use this
    in processes that compute: fresh pages for each tensor cost more than they save.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    except (OSError, AttributeError):
        return


@contextmanager
def collects_later() -> Iterator[None]:
    """Turn off the search for garbage in cycles. Meant for imports, which make many objects that all live on.

    The search takes a fifth of the time of importing torch and transformers.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def settle() -> None:
    """Hide all present objects, which live as long as the process, from the garbage collector.

    Call this at the end of the startup. A full collection looks at every object while everything else waits:
    a tenth of a second for the quarter of a million objects that a gateway's imports make.
    """
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Give freed memory back to the system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
