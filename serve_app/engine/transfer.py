"""Copies between the host and a device, in which neither waits for the other.

`send` and `Parcel` put several arrays on a device in one copy; `Receipt` brings several tensors back in one
copy. The data goes through pinned memory from torch's own cache, which reuses it only after the device has
read or written it. On a CPU nothing is copied. Does not depend on sequences or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

# The offset of every array is a multiple of this many bytes: Triton compiles a kernel once more for pointers
# that are not aligned to 16.
ALIGNMENT: Final = 64


def send(device: torch.device, *arrays: Array) -> list[torch.Tensor]:
    """The arrays as tensors on `device`; a single copy brings them there before the device's later work.

    On a CPU the tensors share the memory of the arrays.
    """
    if device.type == "cpu" or not arrays:
        return [torch.from_numpy(array) for array in arrays]
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for start, array in zip(starts, arrays, strict=True):
        memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(_dtype(array)).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


class Parcel:
    """Arrays that are copied to a device together, as soon as one of them is used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[Array] = []
        self._sent: list[torch.Tensor] | None = None

    def add(self, array: Array) -> Callable[[], torch.Tensor]:
        """Returns a function that returns the array on the device. Raises RuntimeError once any of the arrays
        has been used."""
        if self._sent is not None:
            raise RuntimeError("the parcel is sent")
        place = len(self._arrays)
        self._arrays.append(array)
        return lambda: self._all()[place]

    def _all(self) -> list[torch.Tensor]:
        if self._sent is None:
            self._sent = send(self._device, *self._arrays)
        return self._sent


class Receipt:
    """Tensors on their way from a device to the host, in one copy. Tensors on a CPU need no copy."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors`: at least one, all on one device and with dtypes of eight bytes."""
        self._tensors = tuple(tensors)
        self._event: torch.cuda.Event | None = None
        self._host: torch.Tensor | None = None
        if self._tensors[0].is_cpu:
            return
        words = torch.cat([tensor.reshape(-1).view(torch.int64) for tensor in self._tensors])
        self._host = torch.empty(words.shape, dtype=torch.int64, pin_memory=words.is_cuda)
        self._host.copy_(words, non_blocking=True)
        if words.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> list[torch.Tensor]:
        """The tensors on the CPU; waits until the device has computed them, but not for any later work."""
        if self._event is not None:
            self._event.synchronize()
        if self._host is None:
            return list(self._tensors)
        parts = torch.split(self._host, [tensor.numel() for tensor in self._tensors])
        return [
            part.view(tensor.dtype).view(tensor.shape)
            for part, tensor in zip(parts, self._tensors, strict=True)
        ]


def _dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
