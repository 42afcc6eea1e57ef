"""Memory for weights and caches, in huge pages if the system has them.

A decode step reads every weight once. With pages of 4 KiB, the processor spends part of the time of a step on
looking up pages. Weights that lie side by side in pages of 2 MiB are read about a quarter faster. With huge
pages, the system also needs only a fraction of the time to provide a cache of gigabytes. The module does not
depend on what the memory contains.

The system may take milliseconds to provide a huge page. So tensors that are filled in parallel, such as the
layers of a cache, begin at different offsets in their huge pages. Then they do not all reach a new page in
the same step.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import threading
from typing import Final

import torch

HUGE_PAGE: Final = 2 << 20
CHUNK: Final = 16 * HUGE_PAGE  # bytes that the system is asked for at once
LINE: Final = 64  # bytes: tensors begin at cache lines
# In its huge page, a tensor of zeros begins this part of a huge page after the place of the last tensor. Of
# all numbers, this one spreads any number of tensors most evenly.
APART: Final = (5**0.5 - 1) / 2

_numbers = itertools.count()


class Arena:
    """Hands out pieces of large chunks, and takes none back. A chunk is freed with the last tensor in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = torch.empty(0, dtype=torch.uint8)  # the rest of the newest chunk

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor [count] with arbitrary content, which begins at the start of a cache line."""
        size = count * dtype.itemsize
        taken = -(-size // LINE) * LINE
        with self._lock:
            if taken > len(self._free):
                self._free = _chunk(-(-max(taken, CHUNK) // HUGE_PAGE) * HUGE_PAGE)
            piece, self._free = self._free[:size], self._free[taken:]
        return piece.view(dtype)


def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [count] of zeros in memory of its own, which the system provides when it is touched.

    The tensor begins at the start of a page. Different calls get different offsets within a huge page. Raises
    OSError if the system refuses to reserve that amount.
    """
    size = count * dtype.itemsize
    if size < HUGE_PAGE:
        return torch.zeros(count, dtype=dtype)
    begin = int(next(_numbers) * APART % 1 * HUGE_PAGE) // mmap.PAGESIZE * mmap.PAGESIZE
    return _chunk(-(-(begin + size) // HUGE_PAGE) * HUGE_PAGE)[begin : begin + size].view(dtype)


def _chunk(size: int) -> torch.Tensor:
    """A tensor [size] of bytes, which begins at a huge page. The system gives memory when it is touched."""
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # the system has no huge pages, or they are off
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The tensor keeps the mapping alive.
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE
    return whole[begin : begin + size]
