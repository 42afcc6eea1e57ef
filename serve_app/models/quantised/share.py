"""The part of a quantised matrix that a rank keeps: which entries of its tensors are read for it.

Codes share words, scales and blocks, and a rank's part may begin or end within one of them. So whole ones are
read, and what is left over is taken off when they are a matrix. A group of columns that the part cuts through
becomes smaller groups with the same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.split.cut import Cut, joined
from serve_app.models.stored import StoredTensor

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Region:
    """Rows and columns of a matrix, for which tensors were read."""

    rows: Ranges
    columns: Ranges

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Region:
        """All of a matrix."""
        return cls([(0, shape[0])], [(0, shape[1])])

    @property
    def shape(self) -> tuple[int, int]:
        return _length(self.rows), _length(self.columns)

    def groups(self, size: int) -> list[tuple[int, int]]:
        """The groups of `size` columns."""
        return [(start // size, -(-end // size)) for start, end in self.columns]


# The tensors of a region of one matrix -> what they mean.
Unpack = Callable[[Mapping[str, torch.Tensor], Region], QuantisedMatrix]


@dataclass(frozen=True, slots=True)
class Along:
    """How the rows of a matrix, or its columns, lie along a dimension of a tensor: `entries` of the tensor
    hold `numbers` of them."""

    dim: int
    numbers: int = 1
    entries: int = 1

    def of(self, ranges: Ranges, stored: StoredTensor, lead: int) -> Cut:
        """The entries of these rows, which begin and end with whole ones. The tensor has `lead` dimensions
        before its own."""
        most = stored.shape[lead + self.dim]  # the last entries may be partial
        return joined(
            lead + self.dim,
            ((self._entry(start), min(most, self._entry(end + self.numbers - 1))) for start, end in ranges),
        )

    def _entry(self, number: int) -> int:
        return number // self.numbers * self.entries


Layout = Mapping[str, Along]  # by the tensor's role; the other tensors are needed whole


def whole_units(layout: Layout, ranges: Ranges, size: int) -> Ranges:
    """What is read of `size` rows or columns for some of them, in rising order: whole entries of all tensors,
    and at least one. All of them, if none of the tensors can be read in part."""
    if not layout:
        return [(0, size)]
    unit = lcm(*(each.numbers for each in layout.values()))
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        first = min(start, size - 1) // unit * unit
        last = min(size, -(-max(end, first + 1) // unit) * unit)
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def within(ranges: Ranges, read: Ranges) -> Ranges:
    """The places of `ranges` in what was read, of which each lies in one piece."""
    found = []
    for start, end in ranges:
        at = 0
        for first, last in read:
            if first <= start and end <= last:
                found.append((at + start - first, at + end - first))
                break
            at += last - first
    return found


@dataclass(frozen=True, slots=True)
class UnpackPart:
    """Unpacks what was read, and takes the part's rows or columns from it."""

    unpack: Unpack
    read: Region
    axis: int
    ranges: Ranges  # of what was read
    size: int  # of the part; zeros follow

    def __call__(self, parts: Mapping[str, torch.Tensor], region: Region) -> QuantisedMatrix:
        matrix = self.unpack(parts, self.read)
        if self.axis == 1:
            return matrix.columns(self.ranges)
        if _length(self.ranges) < len(matrix.codes):
            matrix = matrix.rows(taken(torch.arange(len(matrix.codes)), self.ranges).to(matrix.codes.device))
        if self.size > len(matrix.codes):
            matrix.check()  # before there are scales of zero
            matrix = matrix.padded(self.size)
        return matrix


def taken(tensor: torch.Tensor, ranges: Ranges, dim: int = 0) -> torch.Tensor:
    """The entries of `ranges`, side by side."""
    return torch.cat([tensor.narrow(dim, start, end - start) for start, end in ranges], dim)


def _length(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)
