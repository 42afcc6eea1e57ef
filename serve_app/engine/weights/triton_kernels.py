"""Products of weights on a GPU, in Triton. The module depends only on tensors; the files of the formats call
its functions."""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.early import after_previous


@triton.jit
def multiply_row(
    x,  # [K]
    matrix,  # [outputs, K]
    bias,  # [outputs], if BIAS
    out,  # [outputs]
    outputs,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,  # nothing hangs over
    BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute ROWS numbers of the product of one row with a matrix, summed in float32.

    Weights are loaded early, while the previous kernel, which computes the row, is still running.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, STEP)
    places = matrix + rows[:, None].to(tl.int64) * K + dims[None, :]
    inside = (rows < outputs)[:, None] & (dims < K)[None, :]
    weights = tl.load(places, mask=inside | WHOLE, other=0.0, eviction_policy="evict_first")
    after_previous(EARLY)
    numbers = tl.load(x + dims, mask=(dims < K) | WHOLE, other=0.0)
    sums = weights.to(tl.float32) * numbers.to(tl.float32)[None, :]
    for start in range(STEP, K, STEP):
        there = (start + dims < K) | WHOLE
        more = tl.load(
            places + start,
            mask=(rows < outputs)[:, None] & there[None, :] | WHOLE,
            other=0.0,
            eviction_policy="evict_first",
        )
        numbers = tl.load(x + start + dims, mask=there, other=0.0)
        sums += more.to(tl.float32) * numbers.to(tl.float32)[None, :]
    found = tl.sum(sums, 1)
    if BIAS:
        found += tl.load(bias + rows, mask=rows < outputs, other=0.0).to(tl.float32)
    tl.store(out + rows, found.to(out.dtype.element_ty), mask=rows < outputs)
