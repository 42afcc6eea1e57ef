"""Rows of numbers as int8 codes with one scale each, in Triton.

`kernels.quantized.cached_rows` computes the same in torch. Kernels that call `codes_of` must be launched with
the options ROUNDED.
"""

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

# A fused product and sum is rounded once: a number near the middle of two codes could get the other code.
ROUNDED: Final[dict[str, Any]] = {"enable_fp_fusion": False}
INFINITE = tl.constexpr(0x7F800000)  # the bits of infinity; those of NaN are more
LEAST_PEAK = tl.constexpr(1e-30)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: a sum with it is rounded to an integer, ties to even


@triton.jit
def peaks_of(numbers):
    """[R, N] float32 -> [R] int32: the bits of the largest magnitude; compared as integers, they are in the
    order of the magnitudes."""
    return tl.max(numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)


@triton.jit
def scales_of(peaks):
    """[R] bits of the largest magnitudes -> scales, and the factors by which numbers become codes: 0 if all
    codes are 0."""
    peak = peaks.to(tl.float32, bitcast=True)
    finite = peaks < INFINITE
    some = finite & (peak >= LEAST_PEAK)
    safe = tl.where(some, peak, 1.0)
    limit = tl.full(safe.shape, 127.0, tl.float32)
    scales = tl.where(some, tl.div_rn(safe, limit), 0.0)
    return tl.where(finite, scales, float("nan")), tl.where(some, tl.div_rn(limit, safe), 0.0)


@triton.jit
def codes_of(numbers, inverse):
    """[R, N] float32 and [R] -> [R, N] int8."""
    inside = tl.where(inverse[:, None] > 0, numbers, 0.0) * inverse[:, None]
    return ((inside + ROUNDER) - ROUNDER).to(tl.int8)
