"""Torch's threads for the small operations of sampling on a CPU.

Torch shares out an operation of more than 32,768 numbers among its threads. They sleep between two steps,
and waking them takes longer than the operation: milliseconds where other work keeps the cores busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

PART: Final = 2**21  # numbers that one thread handles in less time than waking another one may take


@contextmanager
def few_threads(x: torch.Tensor) -> Iterator[None]:
    """Let torch use one thread for each `PART` numbers of x, in the calling thread; no change on a GPU."""
    usual = torch.get_num_threads()
    wanted = 1 + x.numel() // PART
    if not x.is_cpu or wanted >= usual:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
