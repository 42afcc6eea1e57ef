"""Whether an exception says that memory ran out, of a device or of the machine."""

from __future__ import annotations

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Torch has an exception of its own for devices, but on a CPU raises the same one as for anything."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
