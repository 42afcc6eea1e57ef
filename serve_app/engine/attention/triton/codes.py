"""Rows of numbers as int8 or E4M3 codes with one scale each, in Triton; the bytes of E4M3 are uint8.

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
LEAST_NORMAL = tl.constexpr(121 << 23)  # the bits of 2^-6
UP = tl.constexpr(2.0**120)  # the exponent of E4M3 is smaller by this in float32
ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: a sum with it is rounded to an integer, ties to even


@triton.jit
def peaks_of(numbers):
    """[R, N] float32 -> [R] int32: the bits of the largest magnitude; compared as integers, they are in the
    order of the magnitudes."""
    return tl.max(numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)


@triton.jit
def most_of(kind: tl.constexpr):
    """The largest code of this type."""
    most: tl.constexpr = 448.0 if kind == tl.uint8 else 127.0
    return most


@triton.jit
def scales_of(peaks, kind: tl.constexpr):
    """[R] bits of the largest magnitudes -> scales, and the factors by which numbers become codes: 0 if all
    codes are 0."""
    peak = peaks.to(tl.float32, bitcast=True)
    finite = peaks < INFINITE
    some = finite & (peak >= LEAST_PEAK)
    safe = tl.where(some, peak, 1.0)
    limit = tl.full(safe.shape, most_of(kind), tl.float32)
    scales = tl.where(some, tl.div_rn(safe, limit), 0.0)
    return tl.where(finite, scales, float("nan")), tl.where(some, tl.div_rn(limit, safe), 0.0)


@triton.jit
def codes_of(numbers, inverse, kind: tl.constexpr):
    """[R, N] float32 and [R] -> [R, N] of the type `kind`."""
    inside = tl.where(inverse[:, None] > 0, numbers, 0.0) * inverse[:, None]
    codes = _float8(inside) if kind == tl.uint8 else (inside + ROUNDER) - ROUNDER
    return codes.to(kind)


@triton.jit
def _float8(numbers):
    """float32 -> int32: the nearest E4M3, ties to even; none is beyond the largest one."""
    bits = numbers.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Three bits of the significand are kept; the exponent is that of float32 less 120.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    steps = (tl.abs(numbers) * 512.0 + ROUNDER) - ROUNDER  # of 2^-9, below the least normal number
    codes = tl.where(size < LEAST_NORMAL, steps.to(tl.int32), normal)
    return codes | ((bits >> 24) & 128)


@triton.jit
def values_of(codes):
    """int8, or uint8 with the bytes of E4M3 -> float32."""
    if codes.dtype == tl.uint8:
        wide = codes.to(tl.int32)
        values = (((wide & 128) << 24) | ((wide & 127) << 20)).to(tl.float32, bitcast=True) * UP
    else:
        values = codes.to(tl.float32)
    return values
