"""The products of a layer's experts with weights as packed codes, in Triton. Depends only on tensors."""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.early import after_previous
from serve_app.engine.cuda.experts.kernels import gated_sums, pairs_of_tile
from serve_app.engine.weights.codes_kernels import sum_codes


@triton.jit
def multiply_pairs_by_codes(
    x,  # [rows, K]: pair p has row p // SHARE
    words,  # [EXPERTS * columns, STEPS * STEP / PLACES] int32
    scales,  # [groups, EXPERTS * columns], or [EXPERTS * columns] if GROUP is 0
    zeros,  # likewise, int8, if ZEROS
    bias,  # [EXPERTS * columns], if BIAS
    factors,  # [P], if SCALED: a factor of each pair's result
    out,  # [P, OUTPUTS]
    order,
    tiles,
    columns,  # of an expert: with a gate, those of the gates come before those of the ups
    all_columns,  # of all experts
    limit,  # of a clamped gate
    alpha,
    added,
    K: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    SHARE: tl.constexpr,
    GATE: tl.constexpr,  # as in `multiply_pairs`
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FORM: tl.constexpr,
    PLACES: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    WHOLE: tl.constexpr,
    DECODE: tl.constexpr,
    REGISTERS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """N numbers of the results of one tile's pairs, which all have the same expert."""
    after_previous(EARLY)
    tile = tl.program_id(0)
    count = tl.load(tiles + tile * 3 + 2)
    if count == 0:
        return
    expert, there, pair = pairs_of_tile(order, tiles + tile * 3, count, M)
    outputs = tl.program_id(1) * N + tl.arange(0, N)
    inside = outputs < OUTPUTS
    rows = x + (pair // SHARE) * K
    column = expert * columns + outputs
    sums = _column_sums(
        rows, there, words, scales, zeros, bias, column, inside, all_columns,
        K, STEP, STEPS, M, N, FORM, PLACES, GROUP, ZEROS, WHOLE, DECODE, REGISTERS, BIAS,
    )  # fmt: skip
    ups = sums
    if GATE > 0:
        ups = _column_sums(
            rows, there, words, scales, zeros, bias, column + OUTPUTS, inside, all_columns,
            K, STEP, STEPS, M, N, FORM, PLACES, GROUP, ZEROS, WHOLE, DECODE, REGISTERS, BIAS,
        )  # fmt: skip
    sums = gated_sums(sums, ups, limit, alpha, added, GATE)
    if SCALED:
        sums *= tl.load(factors + pair, mask=there, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + pair[None, :] * OUTPUTS + outputs[:, None],
        sums.to(out.dtype.element_ty),
        mask=there[None, :] & inside[:, None],
    )


@triton.jit
def _column_sums(
    rows,
    there,
    words,
    scales,
    zeros,
    bias,
    column,  # [N] int64: of all experts' columns
    inside,
    all_columns,
    K: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FORM: tl.constexpr,
    PLACES: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    WHOLE: tl.constexpr,
    DECODE: tl.constexpr,
    REGISTERS: tl.constexpr,
    BIAS: tl.constexpr,
):
    """[N, M] float32: the whole products of some columns with the rows."""
    WORDS: tl.constexpr = STEPS * (STEP // PLACES)
    sums = sum_codes(
        rows, there, words + column * WORDS, inside, scales + column, zeros + column, all_columns, 0, STEPS,
        K, STEP, M, N, FORM, PLACES, GROUP, ZEROS, WHOLE, DECODE, REGISTERS,
    )  # fmt: skip
    if GROUP == 0:
        sums *= tl.load(scales + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    if BIAS:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    return sums
