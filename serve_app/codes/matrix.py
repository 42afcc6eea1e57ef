"""A quantised matrix of any format, and its plain numbers. Does not depend on files or names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch.nn import functional

_AT_ONCE: Final = 2**18  # numbers computed in float32 at a time
_LEAST_GROUP: Final = 16  # columns; pieces of groups that are smaller are better ordered by a permutation


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """Each number is (code - zero) x scale + offset, or the code's value x scale + offset.

    Rows and columns share scales in blocks: scale [i, j] is of rows i x block[0] and columns j x block[1]
    onwards. The last block may be partial.
    """

    codes: torch.Tensor  # [N, K], of integers or of a float8 type
    scales: torch.Tensor  # [ceil(N / block[0]), G], of any float type
    block: tuple[int, int]
    zeros: torch.Tensor | None = None  # like the scales
    permutation: torch.Tensor | None = None  # [K]: the column of the scales for each column of the codes
    values: torch.Tensor | None = None  # the value of each code; None: the code is its own value
    offsets: torch.Tensor | None = None  # like the scales; of formats whose minimum is no whole code
    zero_scales: bool = False  # whether scales of zero are meant, and no sign of damage

    def dequantise(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers [N, K]. Raises ValueError as `check`."""
        out = torch.empty(self.codes.shape, dtype=dtype, device=self.codes.device)
        self.write_to(out)
        return out

    def write_to(self, out: torch.Tensor) -> None:
        """Write the numbers to `out` [N, K], computed in float32 and rounded once, to its type.

        Raises ValueError as `check`.
        """
        self.check()
        for part in self._parts():
            numbers, scales = self._factors(part)
            numbers.mul_(scales)
            if self.offsets is not None:
                numbers.add_(self._spread(self.offsets[self._blocks(part)]))
            out[part] = numbers

    def check(self) -> None:
        """Raise ValueError for codes, scales, zeros and columns that cannot be right."""
        if self.codes.dtype.is_floating_point and any(
            bool(self.codes[part].float().isnan().any()) for part in self._parts()
        ):
            raise ValueError("a code is not a number")
        if not bool(self.scales.float().isfinite().all()):
            raise ValueError("a scale is not finite")
        if self.zeros is not None and not bool(self.zeros.float().isfinite().all()):
            raise ValueError("a zero point is not finite")
        if self.offsets is not None and not bool(self.offsets.float().isfinite().all()):
            raise ValueError("a minimum is not finite")
        if self.permutation is not None:
            self._check_columns(self.permutation)
        if not self.zero_scales and bool((self.scales == 0).any()):
            for part in self._parts():
                numbers, scales = self._factors(part)
                if bool(((scales == 0) & (numbers != 0)).any()):
                    raise ValueError("a scale is zero although its codes are not")

    def _check_columns(self, permutation: torch.Tensor) -> None:
        least, most = (int(each) for each in torch.aminmax(permutation))
        if least < 0 or most >= self.scales.shape[1]:
            raise ValueError(f"a column names a group outside 0 to {self.scales.shape[1] - 1}")

    def by_rows(self) -> QuantisedMatrix:
        """The same numbers, with scales for single rows."""
        if self.block[0] == 1:
            return self
        rows = torch.arange(len(self.codes), device=self.codes.device) // self.block[0]
        return replace(self._with(lambda each: each[rows]), block=(1, self.block[1]))

    def rows(self, places: torch.Tensor) -> QuantisedMatrix:
        """The rows at `places`."""
        each = self.by_rows()
        return replace(each._with(lambda part: part[places]), codes=each.codes[places])

    def columns(self, ranges: Sequence[tuple[int, int]]) -> QuantisedMatrix:
        """The columns of `ranges`, side by side. Groups that they cut through become smaller ones."""
        codes = torch.cat([self.codes[:, start:end] for start, end in ranges], 1)
        if self.permutation is not None:
            self._check_columns(self.permutation)
            own = torch.cat([self.permutation[start:end] for start, end in ranges])
            used, own = torch.unique(own, return_inverse=True)
            return replace(self._with(lambda each: each[:, used]), codes=codes, permutation=own).in_order()
        if self.scales.shape[1] == 1:
            return replace(self, codes=codes)
        size = piece_of(self.block[1], ranges)
        places = torch.cat([torch.arange(start, end, size) for start, end in ranges]) // self.block[1]
        places = places.to(codes.device)
        return replace(self._with(lambda each: each[:, places]), codes=codes, block=(self.block[0], size))

    def in_order(self) -> QuantisedMatrix:
        """The same numbers, without a permutation if the columns of a group lie side by side."""
        order = self.permutation
        if order is None:
            return self
        self._check_columns(order)
        changes = (order[1:] != order[:-1]).nonzero().flatten() + 1
        size = math.gcd(*changes.tolist()) or len(order)
        if size < _LEAST_GROUP:
            return self
        places = order[::size].long()
        return replace(
            self._with(lambda each: each[:, places]), block=(self.block[0], size), permutation=None
        )

    def padded(self, rows: int) -> QuantisedMatrix:
        """With rows of zeros at the end, until there are `rows`."""
        each = self.by_rows()
        more = (0, 0, 0, rows - len(each.codes))
        codes = functional.pad(each.codes.view(torch.uint8), more).view(each.codes.dtype)
        return replace(each._with(lambda part: functional.pad(part, more)), codes=codes, zero_scales=True)

    def grouped(self, size: int) -> QuantisedMatrix:
        """The same numbers, with scales for `size` columns, which divide those of a block."""
        if size == self.block[1]:
            return self
        if self.permutation is not None or self.block[1] % size or self.codes.shape[1] % size:
            raise ValueError(f"groups of {size} do not divide those of {self.block[1]} columns")
        groups = torch.arange(self.codes.shape[1] // size, device=self.codes.device) * size // self.block[1]
        return replace(self._with(lambda each: each[:, groups]), block=(self.block[0], size))

    @staticmethod
    def joined(parts: Sequence[QuantisedMatrix]) -> QuantisedMatrix | None:
        """The rows of all parts, one after the other, with the codes of each; None if their schemes are not
        alike."""
        first = parts[0]
        if len(parts) == 1:
            return first
        if any(
            each.codes.dtype != first.codes.dtype
            or not _equal(each.permutation, first.permutation)
            or not _equal(each.values, first.values)
            for each in parts
        ):
            return None
        size = first.block[1]
        if any(each.block[1] != size for each in parts):
            size = math.gcd(*(each.block[1] for each in parts))
            if first.permutation is not None or first.codes.shape[1] % size:
                return None
        tall = first.block[0]
        if any(each.block[0] != tall or len(each.codes) % tall for each in parts):
            parts = [each.by_rows() for each in parts]
        parts = [each.grouped(size) for each in parts]
        return replace(
            parts[0],
            codes=torch.cat([each.codes for each in parts]),
            scales=torch.cat([each.scales for each in parts]),
            zeros=_joined([each.zeros for each in parts], parts),
            offsets=_joined([each.offsets for each in parts], parts),
            zero_scales=any(each.zero_scales for each in parts),
        )

    def _with(self, take: Callable[[torch.Tensor], torch.Tensor]) -> QuantisedMatrix:
        """The same codes, with other rows or columns of the scales, zeros and offsets."""
        zeros, offsets = (None if each is None else take(each) for each in (self.zeros, self.offsets))
        return replace(self, scales=take(self.scales), zeros=zeros, offsets=offsets)

    def _blocks(self, part: slice) -> torch.Tensor:
        """The row of the scales for each of some rows."""
        return torch.arange(part.start, part.stop, device=self.codes.device) // self.block[0]

    def _parts(self) -> Iterator[slice]:
        """The rows, some at a time."""
        rows, columns = self.codes.shape
        step = max(1, _AT_ONCE // max(1, columns))
        for start in range(0, rows, step):
            yield slice(start, min(rows, start + step))

    def _factors(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """What is multiplied for some rows: codes less zeros, or values, and scales, both float32 [R, K]."""
        blocks = self._blocks(part)
        numbers = self._values(self.codes[part])
        if self.zeros is not None:
            numbers = numbers - self._spread(self.zeros[blocks])
        return numbers, self._spread(self.scales[blocks])

    def _spread(self, each: torch.Tensor) -> torch.Tensor:
        """[R, G] of blocks -> float32 [R, K] of columns."""
        if self.permutation is not None:
            return each.float().index_select(1, self.permutation)
        return each.float().repeat_interleave(self.block[1], 1)[:, : self.codes.shape[1]]

    def _values(self, codes: torch.Tensor) -> torch.Tensor:
        """In float32, in memory of their own."""
        if self.values is None:
            return codes.to(torch.float32, copy=True)
        return self.values.float().index_select(0, codes.flatten().int()).view(codes.shape)


def piece_of(group: int, ranges: Sequence[tuple[int, int]]) -> int:
    """The columns of the equal pieces into which `ranges`, side by side, cut groups of `group`; the last one
    may be partial."""
    at = 0
    for start, end in ranges:
        group, at = math.gcd(group, start, at), at + end - start
    return group


def _joined(own: Sequence[torch.Tensor | None], parts: Sequence[QuantisedMatrix]) -> torch.Tensor | None:
    """Zeros or offsets of all parts, which are 0 for a part without; None if no part has any."""
    if all(each is None for each in own):
        return None
    return torch.cat(
        [
            torch.zeros_like(part.scales) if each is None else each
            for each, part in zip(own, parts, strict=True)
        ]
    )


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
