"""Functions of single numbers whose results do not depend on a number's place in its tensor.

On a CPU torch computes the last numbers of a tensor, and of each thread's part of it, one by one, and all
others as vectors, which round otherwise. So a row would depend on the number of rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

LANES: Final = 32  # numbers that torch computes at once, at most
GRAIN: Final = 32_768  # numbers for which torch takes another thread


def exactly(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function` of each number of `x`; the result is contiguous."""
    if x.device.type != "cpu":
        return function(x)
    numbers = x.reshape(-1)
    count = numbers.numel()
    padded = -(-count // LANES) * LANES
    while padded % (LANES * _threads(padded)):
        padded += LANES
    return function(functional.pad(numbers, (0, padded - count)))[:count].view(x.shape)


def _threads(numbers: int) -> int:
    """The number of threads that torch uses for this many numbers, each for a part of the same size."""
    return max(1, min(torch.get_num_threads(), -(-numbers // GRAIN)))
