"""A quantised matrix of any format, and its plain numbers. Does not depend on files or names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

_AT_ONCE: Final = 2**18  # numbers computed in float32 at a time


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """Each number is (code - zero) x scale, or the code's value x scale.

    Rows and columns share scales in blocks: scale [i, j] is of rows i x block[0] and columns j x block[1]
    onwards. The last block may be partial.
    """

    codes: torch.Tensor  # [N, K], of integers or of a float8 type
    scales: torch.Tensor  # [ceil(N / block[0]), G], of any float type
    block: tuple[int, int]
    zeros: torch.Tensor | None = None  # like the scales
    permutation: torch.Tensor | None = None  # [K]: the column of the scales for each column of the codes
    values: torch.Tensor | None = None  # the value of each code; None: the code is its own value

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
            out[part] = numbers.mul_(scales)

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
        if self.permutation is not None:
            least, most = (int(each) for each in torch.aminmax(self.permutation))
            if least < 0 or most >= self.scales.shape[1]:
                raise ValueError(f"a column names a group outside 0 to {self.scales.shape[1] - 1}")
        if bool((self.scales == 0).any()):
            for part in self._parts():
                numbers, scales = self._factors(part)
                if bool(((scales == 0) & (numbers != 0)).any()):
                    raise ValueError("a scale is zero although its codes are not")

    def by_rows(self) -> QuantisedMatrix:
        """The same numbers, with scales for single rows."""
        if self.block[0] == 1:
            return self
        rows = torch.arange(len(self.codes), device=self.codes.device) // self.block[0]
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, scales=self.scales[rows], zeros=zeros, block=(1, self.block[1]))

    def rows(self, places: torch.Tensor) -> QuantisedMatrix:
        """The rows at `places`."""
        each = self.by_rows()
        zeros = None if each.zeros is None else each.zeros[places]
        return replace(each, codes=each.codes[places], scales=each.scales[places], zeros=zeros)

    def grouped(self, size: int) -> QuantisedMatrix:
        """The same numbers, with scales for `size` columns, which divide those of a block."""
        if size == self.block[1]:
            return self
        if self.permutation is not None or self.block[1] % size or self.codes.shape[1] % size:
            raise ValueError(f"groups of {size} do not divide those of {self.block[1]} columns")
        groups = torch.arange(self.codes.shape[1] // size, device=self.codes.device) * size // self.block[1]
        zeros = None if self.zeros is None else self.zeros[:, groups]
        return replace(self, scales=self.scales[:, groups], zeros=zeros, block=(self.block[0], size))

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
        zeros = None
        if any(each.zeros is not None for each in parts):
            zeros = torch.cat(
                [torch.zeros_like(each.scales) if each.zeros is None else each.zeros for each in parts]
            )
        return replace(
            parts[0],
            codes=torch.cat([each.codes for each in parts]),
            scales=torch.cat([each.scales for each in parts]),
            zeros=zeros,
        )

    def _parts(self) -> Iterator[slice]:
        """The rows, some at a time."""
        rows, columns = self.codes.shape
        step = max(1, _AT_ONCE // max(1, columns))
        for start in range(0, rows, step):
            yield slice(start, min(rows, start + step))

    def _factors(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """What is multiplied for some rows: codes less zeros, or values, and scales, both float32 [R, K]."""
        blocks = torch.arange(part.start, part.stop, device=self.codes.device) // self.block[0]
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


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
