"""The codes of quantised checkpoints in the form of the native product, and the same product in plain torch.

A weight is (code - zero) * scale, with a scale and a zero for each group of inputs of an output, plus a
minimum in some formats. Activations become integers as in quantized.py. Sums within a group are exact
integers, and what groups add to an output is added in their order, in float32. So every path gives the same
result, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from serve_app.engine.kernels.quantized import COARSE, QuantizedWeight, quantize_rows
from serve_app.engine.kernels.structs import INPUTS, LANES, Product, quantized_size

UNIT: Final = 32  # inputs; groups have a multiple of them, or half as many
MOST_GROUP: Final = 32_768  # inputs, so that the sum of a row's codes has 22 bits
_HEADER: Final = 64  # bytes
_MINIMUMS: Final = 40  # the byte of the header that says whether there are any


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A weight [N, K] as codes that share scales and zeros in groups of inputs."""

    codes: torch.Tensor  # [N, K] uint8: below 16 of GROUPED4
    scales: torch.Tensor  # [N, ceil(K / group)] float32
    zeros: torch.Tensor  # the same uint8
    group: int  # 16 or a multiple of 32
    bits: int  # 4 or 8
    order: torch.Tensor | None = None  # [K] int32: the input of each column of the codes
    table: torch.Tensor | None = None  # [16] uint8: what the codes of four bits stand for
    minimums: torch.Tensor | None = None  # [N, ceil(K / group)] float32

    @property
    def product(self) -> Product:
        return Product.GROUPED4 if self.bits == 4 else Product.GROUPED8

    @property
    def num_bytes(self) -> int:
        """As it is packed."""
        n, k = self.codes.shape
        ordered, minimums = self.order is not None, self.minimums is not None
        return grouped_size(n, k, self.bits, self.group, ordered=ordered, minimums=minimums)

    def values(self) -> torch.Tensor:
        """Codes less zeros [N, K], in float64."""
        codes = self.codes if self.table is None else self.table[self.codes.int()]
        return codes.double() - self._spread(self.zeros.double())

    def dequantize(self) -> torch.Tensor:
        """[N, K] float64, of the inputs as they come."""
        columns = self.values() * self._spread(self.scales.double())
        if self.minimums is not None:
            columns += self._spread(self.minimums.double())
        if self.order is None:
            return columns
        return torch.empty_like(columns).index_copy_(1, self.order.long(), columns)

    def packed_into(self, out: torch.Tensor) -> torch.Tensor:
        """Write it to `out` [num_bytes] uint8, as grouped_product.h describes; returns `out`."""
        n, k = self.codes.shape
        panels, inputs = -(-n // LANES), _padded(k)
        header = torch.zeros(_HEADER, dtype=torch.uint8)
        numbers = [self.group, self.order is not None, self.table is not None]
        header[:24] = torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)
        if self.table is not None:
            header[24:40] = self.table
        header[_MINIMUMS] = self.minimums is not None
        codes = functional.pad(self.codes, (0, inputs - k, 0, panels * LANES - n))
        words = codes.view(torch.int32).view(panels, LANES, inputs // UNIT, UNIT // 4)  # of four inputs each
        if self.bits == 4:
            words = words[..., : UNIT // 8] | words[..., UNIT // 8 :] << 4
        groups = -(-inputs // self.group)
        more = (0, groups - self.scales.shape[1], 0, panels * LANES - n)
        of_groups = [each for each in (self.scales, self.zeros, self.minimums) if each is not None]
        laid = [functional.pad(each, more).view(panels, LANES, groups).mT for each in of_groups]
        parts = [header, words.permute(0, 2, 3, 1), *laid]
        if self.order is not None:
            parts.append(self.order)
        start = 0
        for part in parts:
            place = out[start : start + part.nbytes].view(part.dtype)
            place.view(part.shape).copy_(part)
            start += part.nbytes
        return out

    def _spread(self, each: torch.Tensor) -> torch.Tensor:
        """[N, G] of groups -> [N, K] of columns."""
        return each.repeat_interleave(self.group, 1)[:, : self.codes.shape[1]]


Codes = QuantizedWeight | GroupedWeight
OF_CODES: Final = (Product.INT8, Product.INT4, Product.GROUPED4, Product.GROUPED8)


def grouped_size(n: int, k: int, bits: int, group: int, *, ordered: bool, minimums: bool) -> int:
    """The bytes of a packed weight [n, k]."""
    outputs, inputs = -(-n // LANES) * LANES, _padded(k)
    groups = -(-inputs // group)
    each = 9 if minimums else 5
    return _HEADER + outputs * (inputs * bits // 8 + groups * each) + (4 * k if ordered else 0)


def fits_codes(packed: torch.Tensor, n: int, k: int, product: Product) -> bool:
    """Whether `packed` has the size of a weight [n, k] of this product of codes."""
    if product in (Product.INT8, Product.INT4):
        return packed.dtype == torch.uint8 and packed.numel() == quantized_size(n, k, product)
    if packed.dtype != torch.uint8 or packed.numel() < _HEADER:
        return False
    group, ordered = packed[:16].view(torch.int64).tolist()
    bits, minimums = 4 if product is Product.GROUPED4 else 8, bool(packed[_MINIMUMS])
    return packed.numel() == grouped_size(n, k, bits, group, ordered=bool(ordered), minimums=minimums)


def grouped_product(x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [M, K] float32 -> x W^T + bias: [M, N] float32. Equal to the native product, bit for bit."""
    if weight.order is not None:
        x = x[:, weight.order.long()]
    codes, row_scales = quantize_rows(x)
    coarse = ((codes + COARSE // 2) / COARSE).floor_()
    out = _by_groups(codes - coarse * COARSE, weight)
    if coarse.any():
        out = torch.where(coarse.any(1)[:, None], out + COARSE * _by_groups(coarse, weight), out)
    out = out * row_scales[:, None]
    return out if bias is None else out + bias


def _by_groups(codes: torch.Tensor, weight: GroupedWeight) -> torch.Tensor:
    """[M, K] integers -> [M, N] float32: the sums of groups times their scales, added in order."""
    values, codes = weight.values(), codes.double()
    out = torch.zeros(len(codes), len(values))
    for group, start in enumerate(range(0, codes.shape[1], weight.group)):
        part = slice(start, start + weight.group)
        sums = codes[:, part] @ values[:, part].T  # integers: float64 has them exactly
        out += sums.float() * weight.scales[:, group]
        if weight.minimums is not None:
            out += codes[:, part].sum(1, keepdim=True).float() * weight.minimums[:, group]
    return out


def _padded(k: int) -> int:
    """Inputs, rounded up to whole steps."""
    return -(-k // INPUTS[torch.int8]) * INPUTS[torch.int8]
