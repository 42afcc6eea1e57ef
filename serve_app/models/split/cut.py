"""The part of one tensor that a rank keeps: ranges of one of its dimensions. Does not use torch itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Cut:
    """Some ranges of one dimension, side by side; zeros follow up to `size`."""

    dim: int
    ranges: tuple[tuple[int, int], ...]
    size: int

    @property
    def taken(self) -> int:
        """The entries of the ranges."""
        return sum(end - start for start, end in self.ranges)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part of a tensor of shape `whole`."""
        return *whole[: self.dim], self.size, *whole[self.dim + 1 :]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a tensor, in memory of its own."""
        part = whole.new_zeros(self.shape(tuple(whole.shape)))
        at = 0
        for start, end in self.ranges:
            part.narrow(self.dim, at, end - start).copy_(whole.narrow(self.dim, start, end - start))
            at += end - start
        return part

    def place(self, number: int) -> int:
        """The entry of the whole that is the entry `number` of the part. Raises IndexError for one of the
        zeros."""
        for start, end in self.ranges:
            if number < end - start:
                return start + number
            number -= end - start
        raise IndexError("no entry of the whole")


# A checkpoint's tensor by its name and shape -> the part that a rank keeps; None: all of it.
CutOf = Callable[[str, tuple[int, ...]], Cut | None]


def joined(dim: int, ranges: Iterable[tuple[int, int]]) -> Cut:
    """The cut of these ranges, without zeros after them."""
    each = tuple(ranges)
    return Cut(dim, each, sum(end - start for start, end in each))
