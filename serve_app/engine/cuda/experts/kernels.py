"""The products of a layer's experts in Triton, and the sorting of rows by expert that these need.

A pair is a row and one of its experts: pair p is row p // K and the expert at place p % K in the row's list.
Sums are in float32, in an order that depends on no other row. Everything here depends only on tensors;
`grouped.py` calls these functions, on a device or, for tests, in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.early import after_previous
from serve_app.engine.attention.triton.product import product


@triton.jit(do_not_specialize=["total"])
def sort_pairs(
    chosen,  # [P] int64: the expert of each pair; none if it is EXPERTS or more
    order,  # [P] int32: pairs by expert, those of an expert in their order
    tiles,  # [tiles, 3] int32: an expert, the first place in `order`, the number of pairs; 0: nothing to do
    total,  # P
    EXPERTS: tl.constexpr,
    M: tl.constexpr,  # pairs of a tile at most
    BY_PAIR: tl.constexpr,  # a tile's place is its first pair; else its places follow those of other experts
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One expert: its pairs and its tiles."""
    after_previous(EARLY)
    expert = tl.program_id(0)
    offsets = tl.arange(0, AT_ONCE)
    first = 0
    count = 0
    for start in range(0, total, AT_ONCE):
        found = tl.load(chosen + start + offsets, mask=start + offsets < total, other=EXPERTS)
        first += tl.sum((found < expert).to(tl.int32), 0)
        count += tl.sum((found == expert).to(tl.int32), 0)
    base = first // M + expert
    if not BY_PAIR:  # places that the expert's tiles may leave empty
        last = (first + count) // M + expert + 1
        if expert == EXPERTS - 1:  # pairs without an expert have places, too
            last = total // M + EXPERTS
        for unused in range(base + tl.cdiv(count, M), last):
            tl.store(tiles + unused * 3 + 2, 0)
    done = 0
    for start in range(0, total, AT_ONCE):
        pair = start + offsets
        found = tl.load(chosen + pair, mask=pair < total, other=EXPERTS)
        own = found == expert
        rank = done + tl.cumsum(own.to(tl.int32), 0) - 1
        done += tl.sum(own.to(tl.int32), 0)
        tl.store(order + first + rank, pair, mask=own)
        begins = own & (rank % M == 0)
        if BY_PAIR:
            # Each pair has a place. Those without an expert are left to the first program.
            orphan = (found >= EXPERTS) & (expert == 0) & (pair < total)
            tl.store(tiles + pair * 3 + 2, 0, mask=(own & (rank % M != 0)) | orphan)
            place = pair
        else:
            place = base + rank // M
        tl.store(tiles + place * 3, expert + tl.zeros_like(pair), mask=begins)
        tl.store(tiles + place * 3 + 1, first + rank, mask=begins)
        tl.store(tiles + place * 3 + 2, tl.minimum(count - rank, M), mask=begins)


@triton.jit
def pairs_of_tile(order, tile, count, M: tl.constexpr):
    """The expert of a tile of `count` pairs, which of its M places have a pair, and the pairs; int64."""
    places = tl.arange(0, M)
    there = places < count
    pair = tl.load(order + tl.load(tile + 1) + places, mask=there, other=0).to(tl.int64)
    return tl.load(tile).to(tl.int64), there, pair


@triton.jit
def gated_sums(sums, ups, limit, alpha, added, GATE: tl.constexpr):
    """What an expert makes of its gates, the `sums`, and its ups."""
    if GATE == 3:
        sums = tl.minimum(sums, limit)
        ups = tl.minimum(tl.maximum(ups, -limit), limit)
        sums = sums * tl.sigmoid(alpha * sums) * (ups + added)
    elif GATE == 2:  # 0.5 x (1 + tanh u) is x sigmoid(2 u)
        sums = sums * tl.sigmoid(1.5957691216057308 * (sums + 0.044715 * sums * sums * sums)) * ups
    elif GATE == 1:
        sums = sums * tl.sigmoid(sums) * ups
    return sums


@triton.jit
def multiply_pairs(
    x,  # [rows, INPUTS]: pair p has row p // SHARE
    matrix,  # [EXPERTS, columns, INPUTS] by its strides
    bias,  # [EXPERTS, columns], if BIAS
    factors,  # [P], if SCALED: a factor of each pair's result
    out,  # [P, OUTPUTS]
    order,
    tiles,
    of_expert,  # strides of the matrix
    of_column,
    of_input,
    columns,  # of an expert
    limit,  # of a clamped gate
    alpha,
    added,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SHARE: tl.constexpr,
    GATE: tl.constexpr,  # 0: none, 1: SiLU, 2: GELU by tanh, 3: clamped
    APART: tl.constexpr,  # columns between a gate and the next one
    UP: tl.constexpr,  # columns between a gate and its up
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
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
    inputs = tl.arange(0, STEP)
    rows = x + (pair // SHARE)[:, None] * INPUTS + inputs[None, :]
    weights = matrix + expert * of_expert + (outputs.to(tl.int64) * APART * of_column)[None, :]
    weights += inputs[:, None].to(tl.int64) * of_input
    sums = tl.zeros([M, N], dtype=tl.float32)
    ups = tl.zeros([M, N], dtype=tl.float32)
    for start in range(0, INPUTS, STEP):
        left = inputs < INPUTS - start
        some = tl.load(rows + start, mask=there[:, None] & left[None, :], other=0.0)
        held = left[:, None] & inside[None, :]
        place = weights + start * of_input
        sums += product(some, tl.load(place, mask=held, other=0.0))
        if GATE > 0:
            ups += product(some, tl.load(place + UP * of_column, mask=held, other=0.0))
    if BIAS:
        place = bias + expert * columns + outputs * APART
        sums += tl.load(place, mask=inside, other=0.0).to(tl.float32)[None, :]
        if GATE > 0:
            ups += tl.load(place + UP, mask=inside, other=0.0).to(tl.float32)[None, :]
    sums = gated_sums(sums, ups, limit, alpha, added, GATE)
    if SCALED:
        sums *= tl.load(factors + pair, mask=there, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out + pair[:, None] * OUTPUTS + outputs[None, :],
        sums.to(out.dtype.element_ty),
        mask=there[:, None] & inside[None, :],
    )


@triton.jit
def add_pairs(
    parts,  # [T, K, SIZE]
    chosen,  # [T, K] int64
    out,  # [T, SIZE]
    K: tl.constexpr,
    SIZE: tl.constexpr,
    EXPERTS: tl.constexpr,
    STEP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """STEP numbers of one row: the sum of its pairs in their order, leaving out pairs without an expert."""
    after_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * STEP + tl.arange(0, STEP)
    total = tl.zeros([STEP], dtype=tl.float32)
    for k in range(K):
        there = (dims < SIZE) & (tl.load(chosen + row * K + k) < EXPERTS)
        total += tl.load(parts + (row * K + k) * SIZE + dims, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + dims, total.to(out.dtype.element_ty), mask=dims < SIZE)
