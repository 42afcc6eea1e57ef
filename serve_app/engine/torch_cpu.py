"""Torch on a CPU: how many threads small operations use, and how errors about memory are recognised.

Torch divides an operation on more than 32,768 numbers among its threads. These threads sleep between two
steps, and waking them takes longer than the operation itself: milliseconds if other work keeps the cores
busy. After an operation the threads spin for a while, waiting for more work (`serve_app/openmp.py`), on cores
that our kernels need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

PART: Final = 2**21  # numbers that one thread handles in less time than waking another one may take


@contextmanager
def few_threads(device: torch.device, numbers: int) -> Iterator[None]:
    """Let torch use one thread per `PART` numbers, for calls from this thread; changes nothing on GPUs."""
    usual = torch.get_num_threads()
    wanted = 1 + numbers // PART
    if device.type != "cpu" or wanted >= usual:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the error means that the memory of a device or of the machine ran out.

    Torch has a separate exception for devices, but on a CPU it raises the same one as for any other error.
    """
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
