"""Divides a step into work on the device, in Triton, so that a graph serves any step of its size."""

from __future__ import annotations

import triton
import triton.language as tl


# Numbers that change with every step.
@triton.jit(do_not_specialize=["D", "most_parts"])
def divide(
    lens,  # [S] int32: tokens of each sequence
    pairs,  # [D, 2] int32: a sequence, and its row in the batch, if PAIRS
    starts,  # [S+1] int32: the first row of each sequence, if STARTS: those of one row are the decodes
    decodes,  # [D, 4] int32: a sequence, its row, its tokens, the first of its parts
    parts,  # [parts, 4] int32: a sequence, its row, its tokens, the first token of the part
    count,  # [1] int32: of parts; those after it are not written
    D,
    most_parts,
    SIZE: tl.constexpr,  # D filled up to a power of two
    AT_ONCE: tl.constexpr,  # parts of a program
    PART: tl.constexpr,
    PAIRS: tl.constexpr,
    STARTS: tl.constexpr,
):
    """Writes AT_ONCE parts; the first program also writes the decodes.

    Without PAIRS and STARTS, sequence i is row i. With STARTS, a sequence that is not a decode gets no parts,
    and row -1.
    """
    each = tl.arange(0, SIZE)
    there = each < D
    if PAIRS:
        sequences = tl.load(pairs + 2 * each, mask=there, other=0)
        rows = tl.load(pairs + 2 * each + 1, mask=there, other=0)
        tokens = tl.load(lens + sequences, mask=there, other=0)
    else:
        sequences = each
        rows = each
        tokens = tl.load(lens + sequences, mask=there, other=0)
        if STARTS:
            start = tl.load(starts + each, mask=there, other=0)
            alone = tl.load(starts + each + 1, mask=there, other=0) - start == 1
            rows = tl.where(alone, start, -1)
            tokens = tl.where(alone, tokens, 0)
    sizes = (tokens + PART - 1) // PART
    ends = tl.cumsum(sizes, 0)
    total = tl.minimum(tl.sum(sizes, 0), most_parts)
    if tl.program_id(0) == 0:
        tl.store(count, total)
        tl.store(decodes + 4 * each, sequences, mask=there)
        tl.store(decodes + 4 * each + 1, rows, mask=there)
        tl.store(decodes + 4 * each + 2, tokens, mask=there)
        tl.store(decodes + 4 * each + 3, ends - sizes, mask=there)
    part = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    own = (part[:, None] >= (ends - sizes)[None, :]) & (part[:, None] < ends[None, :])
    inside = part < total
    first = (part - tl.sum(tl.where(own, (ends - sizes)[None, :], 0), 1)) * PART
    tl.store(parts + 4 * part, tl.sum(tl.where(own, sequences[None, :], 0), 1), mask=inside)
    tl.store(parts + 4 * part + 1, tl.sum(tl.where(own, rows[None, :], 0), 1), mask=inside)
    tl.store(parts + 4 * part + 2, tl.sum(tl.where(own, tokens[None, :], 0), 1), mask=inside)
    tl.store(parts + 4 * part + 3, first, mask=inside)


@triton.jit(do_not_specialize=["sequences", "most_tiles"])
def tile_prompts(
    starts,  # [S+1] int32: the first row of each sequence
    tiles,  # [most_tiles, 2] int32: a sequence, or -1, and the first of its rows that the tile has
    sequences,
    most_tiles,
    SIZE: tl.constexpr,  # S filled up to a power of two
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile
):
    """AT_ONCE tiles of the sequences of several rows. The last rows, which see the most keys, come first."""
    each = tl.arange(0, SIZE)
    there = each < sequences
    rows = tl.load(starts + each + 1, mask=there, other=0) - tl.load(starts + each, mask=there, other=0)
    sizes = tl.where(rows > 1, (rows + ROWS - 1) // ROWS, 0)
    ends = tl.cumsum(sizes, 0)
    total = tl.sum(sizes, 0)
    place = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    tile = total - 1 - place  # below 0: there is none
    own = (tile[:, None] >= (ends - sizes)[None, :]) & (tile[:, None] < ends[None, :])
    first = (tile - tl.sum(tl.where(own, (ends - sizes)[None, :], 0), 1)) * ROWS
    tl.store(tiles + 2 * place, tl.max(tl.where(own, each[None, :], -1), 1), mask=place < most_tiles)
    tl.store(tiles + 2 * place + 1, first, mask=place < most_tiles)
