"""The two products of low-rank adapters, in Triton: each tile of rows uses the matrices of its own adapter.

Sums are in float32. Everything here depends only on tensors; `slots.py` calls these functions, on a device
or, for tests, in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.product import product


@triton.jit
def shrink(
    x,  # [T, K]
    a,  # [slots, MODULES RANK, K]
    ranks,  # [slots] int32
    order,  # int32: rows of x, those of a tile side by side
    tiles,  # [tiles, 3] int32: the first place in `order`, the number of rows, the slot
    hidden,  # [splits, tiles TILE, MODULES RANK] float32
    K: tl.constexpr,
    MODULES: tl.constexpr,
    RANK: tl.constexpr,  # the largest, a multiple of RANKS
    TILE: tl.constexpr,
    RANKS: tl.constexpr,
    STEP: tl.constexpr,  # inputs at once
):
    """RANKS sums (none above the slot's rank) of a tile's rows, over one of several parts of the inputs."""
    tile = tl.program_id(0)
    column = tl.program_id(1) * RANKS
    split = tl.program_id(2)
    count = tl.load(tiles + tile * 3 + 1)
    if count == 0:
        return
    slot = tl.load(tiles + tile * 3 + 2).to(tl.int64)
    if column % RANK >= tl.load(ranks + slot):
        return
    places = tl.arange(0, TILE)
    there = places < count
    rows = tl.load(order + tl.load(tiles + tile * 3) + places, mask=there, other=0).to(tl.int64)
    columns = column + tl.arange(0, RANKS)
    part = tl.cdiv(K, tl.num_programs(2) * STEP) * STEP
    sums = tl.zeros([TILE, RANKS], dtype=tl.float32)
    for start in range(split * part, tl.minimum(K, (split + 1) * part), STEP):
        inputs = start + tl.arange(0, STEP)
        inside = inputs < K
        some = tl.load(
            x + rows[:, None] * K + inputs[None, :], mask=there[:, None] & inside[None, :], other=0.0
        )
        matrix = tl.load(
            a + (slot * MODULES * RANK + columns)[:, None] * K + inputs[None, :],
            mask=inside[None, :],
            other=0.0,
        )
        sums += product(some.to(matrix.dtype), tl.trans(matrix))
    place = (split * tl.num_programs(0) + tile).to(tl.int64) * TILE + places
    tl.store(hidden + place[:, None] * MODULES * RANK + columns[None, :], sums)


# The number of parts depends on that of tiles. As a constant, it would compile the kernel again and again.
@triton.jit(do_not_specialize=["splits"])
def expand(
    hidden,  # [splits, tiles TILE, MODULES RANK] float32
    b,  # [slots, N, RANK]
    ranks,  # [slots] int32
    order,
    tiles,
    out,  # [T, N]
    splits,
    N: tl.constexpr,
    FIRST: tl.constexpr,  # outputs of the first module, and of the second
    SECOND: tl.constexpr,
    MODULES: tl.constexpr,
    RANK: tl.constexpr,
    TILE: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Adds the adapter's part to OUTPUTS outputs of one module, for the rows of a tile."""
    tile = tl.program_id(0)
    block = tl.program_id(1)
    count = tl.load(tiles + tile * 3 + 1)
    if count == 0:
        return
    slot = tl.load(tiles + tile * 3 + 2).to(tl.int64)
    rank = tl.load(ranks + slot)
    if rank == 0:
        return
    # A block lies in one module. Blocks of a module begin at its first output.
    TO_SECOND: tl.constexpr = (FIRST + OUTPUTS - 1) // OUTPUTS
    TO_THIRD: tl.constexpr = TO_SECOND + (SECOND + OUTPUTS - 1) // OUTPUTS
    in_second = block >= TO_SECOND
    in_third = block >= TO_THIRD
    module = in_second.to(tl.int32) + in_third.to(tl.int32)
    first = tl.where(in_second, FIRST + (block - TO_SECOND) * OUTPUTS, block * OUTPUTS)
    first = tl.where(in_third, FIRST + SECOND + (block - TO_THIRD) * OUTPUTS, first)
    end = tl.where(in_third, N, tl.where(in_second, FIRST + SECOND, FIRST))
    places = tl.arange(0, TILE)
    there = places < count
    rows = tl.load(order + tl.load(tiles + tile * 3) + places, mask=there, other=0).to(tl.int64)
    outputs = first + tl.arange(0, OUTPUTS)
    inside = outputs < end
    apart = tl.num_programs(0).to(tl.int64) * TILE * MODULES * RANK
    place = hidden + ((tile * TILE + places) * MODULES + module)[:, None].to(tl.int64) * RANK
    sums = tl.zeros([TILE, OUTPUTS], dtype=tl.float32)
    for column in range(0, rank, RANKS):
        columns = column + tl.arange(0, RANKS)
        some = tl.zeros([TILE, RANKS], dtype=tl.float32)
        for split in range(splits):
            some += tl.load(place + split * apart + columns[None, :])
        matrix = tl.load(
            b + (slot * N + outputs)[:, None] * RANK + columns[None, :], mask=inside[:, None], other=0.0
        )
        sums += product(some.to(matrix.dtype), tl.trans(matrix))
    target = out + rows[:, None] * N + outputs[None, :]
    mask = there[:, None] & inside[None, :]
    sums += tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, sums.to(out.dtype.element_ty), mask=mask)
