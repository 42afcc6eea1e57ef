"""Memory for large tensors that the system gets back as soon as they are freed."""

from __future__ import annotations

import math
import mmap

import torch


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor whose numbers are not set; on a CPU in pages of its own."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(pages(size), dtype=dtype).view(shape)


def pages(size: int) -> mmap.mmap:
    """Memory that is returned to the system with its tensor.

    With malloc, the gaps between tensors of several threads added up to most of a model.
    """
    return mmap.mmap(-1, size)
