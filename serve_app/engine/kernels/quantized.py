"""Quantised weights in plain torch: how codes are chosen, and the product that native functions reproduce.

Weights become int8 codes, with a scale for each output. int4 weights are int8 codes too, but the codes of
each group of sixteen lie on a lattice: a step times a four-bit number, minus an offset (the least).
Activations become integers with a scale for each row: int8, or sixteen bits for the few numbers far outside
the range of the others. Sums of codes are exact integers. All other operations have a fixed order. So every
path gives the same result, bit for bit, no matter which instructions it uses and which rows are in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch
from torch.nn import functional

from serve_app.engine.kernels.structs import INT4_INPUTS, Product

EXACT: Final = 1024  # inputs whose sum of int8 products is exact in float32: 128 * 127 * 1024 < 2^24
MAX_CODE: Final = 127.0  # of weights, of a cache, and of most activations
COARSE: Final = 256  # a code of sixteen bits is one of eight bits plus this times another
FLOAT8: Final = torch.float8_e4m3fn
MOST_FLOAT8: Final = 448.0
MOST_CODE: Final = MAX_CODE * (COARSE + 1)  # of a code of sixteen bits
REACH: Final = 8.0  # codes of eight bits reach at least this multiple of a row's mean magnitude
LEAST_PEAK: Final = 1e-30  # a row of activations with a smaller peak is a row of zeros
CHUNK: Final = 1 << 18  # weights that are quantised at once: small enough for the second-level cache
MOST_Q: Final = 15  # of four bits
MOST_STEP, MOST_LEAST = 17, 127  # in codes: fifteen steps reach from -127 to 127
# The lattices tried for sixteen weights of int4: their step, beside the one that reaches from the lowest
# weight to the highest, and how far their middle is above that of the weights, in steps.
STEPS: Final = (-1, 0)
SHIFTS: Final = (-0.3, 0.0, 0.3)


class Quantization(StrEnum):
    """The formats of quantised weights of linear layers."""

    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K] as codes multiplied by scales."""

    codes: torch.Tensor  # [N, K] int8: from -127 to 127
    scales: torch.Tensor  # [N] float32
    # Of int4: the step and the least of every sixteen codes, [N, ceil(K / 16), 2] uint8. A code is
    # q * step - least for a q from 0 to 15.
    groups: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: torch.Tensor, kind: Quantization) -> QuantizedWeight:
        """The nearest codes. With int8, the largest magnitude of an output gets the code 127 or -127."""
        n, k = weight.shape
        codes = torch.empty(n, k, dtype=torch.int8)
        scales = torch.empty(n)
        groups = None
        if kind is Quantization.INT4:
            groups = torch.empty(n, -(-k // INT4_INPUTS), 2, dtype=torch.uint8)
        rows = max(1, CHUNK // k)
        for first in range(0, n, rows):
            part = slice(first, first + rows)
            wide = weight[part].float()
            scales[part] = wide.abs().amax(1) / 127.0
            wanted = wide / scales[part].clamp_min(LEAST_PEAK)[:, None]
            if groups is None:
                codes[part] = wanted.round_().clamp_(-127, 127)
            else:
                codes[part], groups[part] = _lattices(wanted)
        return cls(codes, scales, groups)

    @property
    def product(self) -> Product:
        return Product.INT8 if self.groups is None else Product.INT4

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Contiguous codes, int4 steps and leasts, and scales. Raises ValueError if their shapes do not
        match."""
        n, k = self.codes.shape
        if self.codes.dtype != torch.int8 or (self.scales.dtype, *self.scales.shape) != (torch.float32, n):
            raise ValueError("the scales do not fit the codes")
        if self.groups is None:
            return self.codes.contiguous(), self.scales.contiguous()
        if (self.groups.dtype, *self.groups.shape) != (torch.uint8, n, -(-k // INT4_INPUTS), 2):
            raise ValueError("the steps and leasts do not fit the codes")
        return self.codes.contiguous(), self.groups.contiguous(), self.scales.contiguous()

    def rows(self, places: torch.Tensor) -> QuantizedWeight:
        """The outputs at `places`."""
        groups = None if self.groups is None else self.groups[places]
        return QuantizedWeight(self.codes[places], self.scales[places], groups)

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.groups is None else self.groups.nbytes)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32."""
        return self.codes.float() * self.scales[:, None]


def product(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [M, K] float32 -> x W^T + bias: [M, N] float32. Equal to the native product, bit for bit."""
    codes, row_scales = quantize_rows(x)
    coarse = ((codes + COARSE // 2) / COARSE).floor_()
    sums = _exact(codes - coarse * COARSE, weight.codes)
    if coarse.any():
        sums += COARSE * _exact(coarse, weight.codes)
    out = sums.float() * row_scales[:, None] * weight.scales
    return out if bias is None else out + bias


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] float32 -> codes (as float32) and scales [M]; NaN for rows that are not finite.

    The largest magnitude of a row gets the code 127. If the mean magnitude of the row would then get a code
    below an eighth of 127, the largest gets a code of up to 32,639 instead, so that 127 is eight times the
    mean's code.
    """
    wide, _ = _codes(x, x.new_full((len(x),), MOST_CODE))
    # The mean is that of integers, so it does not depend on the order of a sum.
    mean = wide.abs().sum(1, dtype=torch.float64).float() / x.new_full((len(x),), float(x.shape[1]))
    reach = torch.full_like(mean, MOST_CODE) / (REACH * mean)  # infinite for a row of zeros
    return _codes(x, MAX_CODE * reach.clamp_(1.0, MOST_CODE / MAX_CODE))


def cached_rows(x: torch.Tensor, kind: torch.dtype = torch.int8) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys or values [..., D] -> their form in a quantised cache: codes as `stored_as(kind)`, and scales
    [...]. `kind`: int8 or float8_e4m3fn."""
    rows = x.reshape(-1, x.shape[-1]).float()
    most = MOST_FLOAT8 if kind == FLOAT8 else MAX_CODE
    numbers, scales = _scaled(rows, rows.new_full((len(rows),), most))
    codes = numbers.to(FLOAT8).view(torch.uint8) if kind == FLOAT8 else numbers.round().to(torch.int8)
    return codes.view(x.shape), scales.view(x.shape[:-1])


def stored_as(kind: torch.dtype) -> torch.dtype:
    """The type of tensors that hold such codes: uint8 holds the bytes of float8."""
    return torch.uint8 if kind == FLOAT8 else kind


def code_values(codes: torch.Tensor) -> torch.Tensor:
    """What stored codes mean, in float32, without their scales."""
    return (codes.view(FLOAT8) if codes.dtype == torch.uint8 else codes).float()


def _codes(x: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `quantize_rows`, but the largest magnitudes of the rows get the codes `most` [M]."""
    numbers, scales = _scaled(x, most)
    return numbers.round_(), scales


def _scaled(x: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_codes`, but the numbers are not rounded."""
    finite = x.isfinite().all(1)
    peak = x.abs().amax(1)
    empty = ~finite | ~(peak >= LEAST_PEAK)
    inverse = torch.where(empty, 0.0, most / peak)  # a number over a tensor would be rounded twice
    numbers = torch.where(empty[:, None], 0.0, x * inverse[:, None])
    scales = torch.where(empty, 0.0, peak / most)
    return numbers, torch.where(finite, scales, float("nan"))


def _exact(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """codes [M, K], integers from -128 to 127 as float32; weight [N, K] int8 -> codes W^T: [M, N] int32."""
    sums = torch.zeros(len(codes), len(weight), dtype=torch.int32)
    for first in range(0, codes.shape[1], EXACT):
        part = slice(first, first + EXACT)
        sums += (codes[:, part] @ weight[:, part].float().T).int()
    return sums


def _lattices(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] from -127 to 127 -> codes near it [N, K]; steps and leasts [N, ceil(K / 16), 2].

    For each group, takes the lattice with the least squared error among a few. Each lattice is shifted once,
    by its mean error.
    """
    n, k = weight.shape
    wanted = functional.pad(weight, (0, -k % INT4_INPUTS)).view(n, -1, INT4_INPUTS)
    low, high = wanted.amin(2, keepdim=True), wanted.amax(2, keepdim=True)
    whole = ((high - low) / MOST_Q).ceil_()
    best_step, best_least = torch.ones_like(low), torch.zeros_like(low)
    least_error = torch.full_like(low, float("inf"))
    for more in STEPS:
        step = (whole + more).clamp_(1, MOST_STEP)
        for shift in SHIFTS:
            least = ((shift + MOST_Q / 2) * step - (low + high) / 2).round_().clamp_(0, MOST_LEAST)
            least += _on_lattice(wanted, step, least).sub_(wanted).mean(2, keepdim=True).round_()
            least.clamp_(0, MOST_LEAST)
            error = _on_lattice(wanted, step, least).sub_(wanted).square_().sum(2, keepdim=True)
            better = error < least_error
            best_step = torch.where(better, step, best_step)
            best_least = torch.where(better, least, best_least)
            least_error = torch.where(better, error, least_error)
    found = _on_lattice(wanted, best_step, best_least)
    return found.view(n, -1)[:, :k], torch.cat([best_step, best_least], 2)


def _on_lattice(wanted: torch.Tensor, step: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """The codes nearest to `wanted`, but at most 127."""
    q = (wanted + least).div_(step).round_().clamp_(0, MOST_Q)
    highest = ((127 + least) / step).floor_()
    return torch.minimum(q, highest, out=q).mul_(step).sub_(least)
