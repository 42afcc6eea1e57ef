"""Decodes divided into parts by the device alone, in Triton: a graph divides whatever lengths it meets."""

from __future__ import annotations

import triton
import triton.language as tl


# Numbers that change with every step.
@triton.jit(do_not_specialize=["D", "most_parts"])
def divide(
    lens,  # [S] int32: tokens of each sequence
    pairs,  # [D, 2] int32: a sequence, and its row in the batch; without PAIRS each sequence is its own row
    decodes,  # [D, 4] int32: a sequence, its row, its tokens, the first of its parts
    parts,  # [parts, 4] int32: a sequence, its row, its tokens, the first token of the part
    count,  # [1] int32: of parts; those behind it are not written
    D,
    most_parts,
    SIZE: tl.constexpr,  # D filled up to a power of two
    AT_ONCE: tl.constexpr,  # parts of a program
    PART: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """AT_ONCE parts; the first program writes the decodes besides."""
    each = tl.arange(0, SIZE)
    there = each < D
    if PAIRS:
        sequences = tl.load(pairs + 2 * each, mask=there, other=0)
        rows = tl.load(pairs + 2 * each + 1, mask=there, other=0)
    else:
        sequences = each
        rows = each
    tokens = tl.load(lens + sequences, mask=there, other=0)
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
