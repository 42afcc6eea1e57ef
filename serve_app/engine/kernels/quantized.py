"""Quantised weights in plain torch: how codes are chosen, and the product that native functions reproduce.

Weights become int8, with a scale for each output. Activations become int8, with a scale for each row. Sums of
codes are exact integers. All other operations have a fixed order. So every path has the same result, bit for
bit, whatever instructions it uses and whatever rows are beside a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

EXACT: Final = 1024  # inputs whose sum of int8 products is exact in float32: 127 * 127 * 1024 < 2^24
LEAST_PEAK: Final = 1e-30  # a row of activations with a smaller peak is a row of zeros
CHUNK: Final = 1 << 18  # weights that are quantised at once: small enough for the second-level cache


class Quantization(StrEnum):
    """What the weights of linear layers become."""

    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K] as codes times scales."""

    codes: torch.Tensor  # [N, K] int8: from -127 to 127
    scales: torch.Tensor  # [N] float32

    @classmethod
    def of(cls, weight: torch.Tensor) -> QuantizedWeight:
        """The nearest codes. The largest magnitude of an output has the code 127 or -127."""
        n, k = weight.shape
        codes = torch.empty(n, k, dtype=torch.int8)
        scales = torch.empty(n)
        rows = max(1, CHUNK // k)
        for first in range(0, n, rows):
            part = slice(first, first + rows)
            codes[part], scales[part] = _quantize(weight[part].float())
        return cls(codes, scales)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32."""
        return self.codes.float() * self.scales[:, None]


def product(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [M, K] float32 -> x W^T + bias: [M, N] float32. Equal to the native product, bit for bit."""
    codes, row_scales = quantize_rows(x)
    sums = torch.zeros(len(x), len(weight.codes), dtype=torch.int32)
    for first in range(0, x.shape[1], EXACT):
        part = slice(first, first + EXACT)
        sums += (codes[:, part] @ weight.codes[:, part].float().T).int()
    out = sums.float() * row_scales[:, None] * weight.scales
    return out if bias is None else out + bias


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] float32 -> codes from -127 to 127, as float32, and scales [M]; NaN if not finite."""
    finite = x.isfinite().all(1)
    peak = x.abs().amax(1)
    empty = ~finite | ~(peak >= LEAST_PEAK)
    inverse = torch.where(empty, 0.0, torch.full_like(peak, 127.0) / peak)  # 127.0 / peak would round twice
    codes = torch.where(empty[:, None], 0.0, (x * inverse[:, None]).round())
    scales = torch.where(empty, 0.0, peak / 127.0)
    return codes, torch.where(finite, scales, float("nan"))


def _quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = weight.abs().amax(1) / 127.0
    return (weight / scales.clamp_min(LEAST_PEAK)[:, None]).round().clamp(-127, 127).to(torch.int8), scales
