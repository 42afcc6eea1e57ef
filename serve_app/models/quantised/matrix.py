"""A quantised matrix of any format, and its plain numbers. Does not depend on files or names."""

from __future__ import annotations

from dataclasses import dataclass
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
        """The numbers [N, K]. Raises ValueError as `write_to`."""
        out = torch.empty(self.codes.shape, dtype=dtype, device=self.codes.device)
        self.write_to(out)
        return out

    def write_to(self, out: torch.Tensor) -> None:
        """Write the numbers to `out` [N, K], computed in float32 and rounded once, to its type.

        Raises ValueError for scales and columns that cannot be right.
        """
        self._check()
        rows, columns = self.codes.shape
        suspicious = bool((self.scales == 0).any())
        step = max(1, _AT_ONCE // max(1, columns))
        for start in range(0, rows, step):
            part = slice(start, min(rows, start + step))
            blocks = torch.arange(part.start, part.stop, device=out.device) // self.block[0]
            numbers = self._values(self.codes[part])
            if self.zeros is not None:
                numbers = numbers - self._spread(self.zeros[blocks])
            scales = self._spread(self.scales[blocks])
            if suspicious and bool(((scales == 0) & (numbers != 0)).any()):
                raise ValueError("a scale is zero although its codes are not")
            out[part] = numbers.mul_(scales)

    def _check(self) -> None:
        if not bool(self.scales.float().isfinite().all()):
            raise ValueError("a scale is not finite")
        if self.zeros is not None and not bool(self.zeros.float().isfinite().all()):
            raise ValueError("a zero point is not finite")
        if self.permutation is not None:
            least, most = (int(each) for each in torch.aminmax(self.permutation))
            if least < 0 or most >= self.scales.shape[1]:
                raise ValueError(f"a column names a group outside 0 to {self.scales.shape[1] - 1}")

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
