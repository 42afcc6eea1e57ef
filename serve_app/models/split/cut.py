"""The part of one tensor that a rank keeps, and reading no more than that part."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import Protocol

import torch

from serve_app.codes.pages import new_tensor
from serve_app.models.stored import StoredTensor
from serve_app.models.streamed import TYPES


@dataclass(frozen=True, slots=True)
class Cut:
    """Some ranges of one dimension, side by side; zeros follow up to `size`."""

    dim: int
    ranges: tuple[tuple[int, int], ...]
    size: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part of a tensor of shape `whole`."""
        return *whole[: self.dim], self.size, *whole[self.dim + 1 :]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a tensor, in memory of its own."""
        part = torch.zeros(self.shape(tuple(whole.shape)), dtype=whole.dtype, device=whole.device)
        at = 0
        for start, end in self.ranges:
            part.narrow(self.dim, at, end - start).copy_(whole.narrow(self.dim, start, end - start))
            at += end - start
        return part

    def read(self, stored: StoredTensor) -> torch.Tensor:
        """The part of a stored tensor; no other bytes are read. Raises OSError if the file ends too early."""
        dtype = TYPES[stored.dtype]
        part = new_tensor(self.shape(stored.shape), dtype, torch.device("cpu"))
        if not part.numel():
            return part
        if sum(end - start for start, end in self.ranges) < self.size:
            part.zero_()
        memory = part.view(-1).view(torch.uint8).numpy().data
        inner = math.prod(stored.shape[self.dim + 1 :]) * dtype.itemsize
        row = stored.shape[self.dim] * inner
        file = os.open(stored.path, os.O_RDONLY)
        try:
            for outer in range(math.prod(stored.shape[: self.dim])):
                at = outer * self.size * inner
                for start, end in self.ranges:
                    length = (end - start) * inner
                    _read(file, memory[at : at + length], stored.start + outer * row + start * inner, stored)
                    at += length
        finally:
            os.close(file)
        return part


def _read(file: int, into: memoryview, offset: int, stored: StoredTensor) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file, [into[done:]], offset + done)
        if not count:
            raise OSError(f"{stored.path} ends within {stored.name}")
        done += count


class Loadable(Protocol):
    """Stands for a tensor where transformers loads a `state_dict`; see `StreamedTensor`."""

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor: ...


class PartOfStored:
    """As `StreamedTensor`, for a part of a stored tensor."""

    def __init__(self, stored: StoredTensor, cut: Cut, device: torch.device) -> None:
        self._stored, self._cut, self._device = stored, cut, device

    def __getitem__(self, whole: EllipsisType) -> PartOfStored:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The part on our device, whatever `device` is. Raises OSError."""
        return self._cut.read(self._stored).to(self._device).to(dtype)


class PartOfLoaded:
    """As `PartOfStored`, for a tensor that has to be loaded as a whole, as codes are."""

    def __init__(self, whole: Loadable, cut: Cut) -> None:
        self._whole, self._cut = whole, cut

    def __getitem__(self, whole: EllipsisType) -> PartOfLoaded:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._cut.of(self._whole.to(device, dtype))


def even(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """The range of `rank` if `size` is divided evenly."""
    part = size // ranks
    return rank * part, (rank + 1) * part


def joined(dim: int, ranges: Iterable[tuple[int, int]]) -> Cut:
    """The cut of these ranges, without zeros after them."""
    each = tuple(ranges)
    return Cut(dim, each, sum(end - start for start, end in each))
