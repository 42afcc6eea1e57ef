"""Paged attention in Triton: rows of prompts, and decodes whose cache is read in parts.

The cache is [blocks, block_size, Hkv, D] per layer. One program computes the rows of one KV head, so that
keys and values are read only once for all query heads of the group, or for some of them if they are many and
wide. Scores and sums are float32. Whatever a block has after its sequence's end is never read: a weight of
zero times a NaN would be a NaN.

Weights are computed as powers of two, for which a device has an instruction: `scale`, `softcap` and sinks are
therefore multiplied by LOG2_E.

With LATENT, a value is the first VALUE_DIM numbers of its key, and is loaded once. Queries and keys are then
multiplied in two parts, these numbers and the rest.

With CODES, keys and values are int8 or E4M3 codes with a float32 scale for each slot and KV head: scores are
multiplied by the scales of keys, and weights by the scales of values.

Depends on tensors only. `backend.py` calls the functions here on a device or, for tests, in Triton's
interpreter.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from serve_app.engine.attention.triton.codes import values_of
from serve_app.engine.attention.triton.early import after_previous
from serve_app.engine.attention.triton.product import product

NEVER = tl.constexpr(-float("inf"))
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp2(x * (-2 * LOG2_E))) - 1


@triton.jit
def _rows_of(
    query, places, used, DIM: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr, PAD: tl.constexpr
):
    """The numbers FIRST to END of the queries at `places` [M], which have DIM: [M, PAD]."""
    dims = tl.arange(0, PAD)[None, :]
    return tl.load(
        query + places[:, None] * DIM + FIRST + dims, mask=used[:, None] & (dims < END - FIRST), other=0.0
    )


@triton.jit
def _attend(
    query,  # [M, KEY_PAD]
    rest,  # [M, REST_PAD]: of the query, if LATENT
    positions,  # [M]: of each row in its sequence
    first,  # the first key that is read
    end,  # one after the last
    top,  # [M] float32: each row's highest score so far
    total,  # [M] float32: its sum of weights
    sums,  # [M, VALUE_PAD] float32: its weighted values
    table,  # pointer to the sequence's blocks
    keys,
    values,
    key_scales,
    value_scales,
    kv_head,
    scale,
    softcap,
    window,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CODES: tl.constexpr,
    LATENT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add keys `first` to `end`. Without MASKED, every row sees all of these keys, a multiple of N.

    MASKED must not change a bit of a row's result, since it depends on the tile, and the tile depends on how
    the prompt was cut into pieces.
    """
    factor = softcap if SOFTCAP else scale
    FIRST_DIMS: tl.constexpr = VALUE_DIM if LATENT else KEY_DIM
    key_dims = tl.arange(0, KEY_PAD)[None, :]
    value_dims = tl.arange(0, VALUE_PAD)[None, :]
    rest_dims = VALUE_DIM + tl.arange(0, REST_PAD)[None, :]
    for start in range(first, end, N):
        tokens = start + tl.arange(0, N)
        there = (tokens < end) | (not MASKED)
        blocks = tl.load(table + tokens // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        slots = (blocks * BLOCK_SIZE + tokens % BLOCK_SIZE) * KV_HEADS + kv_head
        key = tl.load(
            keys + slots[:, None] * KEY_DIM + key_dims,
            mask=there[:, None] & (key_dims < FIRST_DIMS),
            other=0.0,
        )
        if CODES:  # exact; the interpreter makes a bfloat16 of a float32 alone
            key = values_of(key)
        scores = product(query, tl.trans(key.to(query.dtype)))
        if LATENT:
            others = tl.load(
                keys + slots[:, None] * KEY_DIM + rest_dims,
                mask=there[:, None] & (rest_dims < KEY_DIM),
                other=0.0,
            )
            scores += product(rest, tl.trans(others.to(query.dtype)))
        if CODES:
            scores = scores * tl.load(key_scales + slots, mask=there, other=0.0)[None, :]
        if SOFTCAP:
            scores = _tanh(scores * (scale / softcap))
        if MASKED:
            visible = there[None, :] & (tokens[None, :] <= positions[:, None])
            if WINDOW:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, NEVER)
        new_top = tl.maximum(top, tl.max(scores, 1) * factor)
        base = new_top
        if WINDOW:  # a row that has seen no key yet has no top: subtracting it would give a NaN
            base = tl.where(new_top == NEVER, 0.0, new_top)
        weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
        kept = tl.exp2(top - base)
        if LATENT:
            value = key
        else:
            value = tl.load(
                values + slots[:, None] * VALUE_DIM + value_dims,
                mask=there[:, None] & (value_dims < VALUE_DIM),
                other=0.0,
            )
        total = total * kept + tl.sum(weights, 1)
        if CODES:
            value = values_of(value)
            weights = weights * tl.load(value_scales + slots, mask=there, other=0.0)[None, :]
        sums = sums * kept[:, None] + product(weights.to(query.dtype), value.to(query.dtype))
        top = new_top
    return top, total, sums


# Numbers that change with every step: none of their values is worth a kernel of its own.
@triton.jit(do_not_specialize=["width", "window"])
def prompts(
    query,  # [T, H, KEY_DIM]
    keys,
    values,
    key_scales,  # [blocks, block_size, Hkv] float32, if CODES
    value_scales,
    out,  # [T, H, VALUE_DIM]
    tables,  # [S, width]
    width,
    query_start,  # [S+1]
    context_lens,  # [S]
    tiles,  # [tiles, 2]: a sequence, and the first of its rows that the tile has; below 0: there is no tile
    sinks,  # [H]
    scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    CODES: tl.constexpr,
    LATENT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One tile: compute M / GROUP_PAD rows of one sequence, for one group of query heads."""
    GROUP: tl.constexpr = HEADS // GROUPS
    after_previous(EARLY)
    tile = tl.program_id(0) // GROUPS
    sequence = tl.load(tiles + 2 * tile)
    if sequence < 0:
        return
    first_row = tl.load(tiles + 2 * tile + 1)
    group = tl.program_id(0) % GROUPS
    kv_head = group // (GROUPS // KV_HEADS)
    begin = tl.load(query_start + sequence)
    rows_of_sequence = tl.load(query_start + sequence + 1) - begin
    length = tl.load(context_lens + sequence)

    lanes = tl.arange(0, M)
    rows = first_row + lanes // GROUP_PAD
    heads = group * GROUP + lanes % GROUP_PAD
    used = (rows < rows_of_sequence) & (lanes % GROUP_PAD < GROUP)
    positions = length - rows_of_sequence + rows
    places = ((begin + rows) * HEADS + heads).to(tl.int64)
    FIRST_DIMS: tl.constexpr = VALUE_DIM if LATENT else KEY_DIM
    row = _rows_of(query, places, used, KEY_DIM, 0, FIRST_DIMS, KEY_PAD)
    rest = row
    if LATENT:
        rest = _rows_of(query, places, used, KEY_DIM, FIRST_DIMS, KEY_DIM, REST_PAD)
    last_row = tl.minimum(first_row + M // GROUP_PAD, rows_of_sequence) - 1
    end = length - rows_of_sequence + last_row + 1  # later keys are seen by no row of the tile
    top = tl.full([M], NEVER, tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, VALUE_PAD], tl.float32)
    table = tables + sequence.to(tl.int64) * width
    # Starts at multiples of N, so that cutting a prompt into pieces changes no sum.
    if WINDOW:
        first = tl.maximum(0, length - rows_of_sequence + first_row - window + 1) // N * N
    else:  # all rows see these
        first = (length - rows_of_sequence + first_row + 1) // N * N
        top, total, sums = _attend(
            row, rest, positions, 0, first, top, total, sums, table, keys, values,
            key_scales, value_scales, kv_head, scale, softcap, window,
            KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, REST_PAD, N,
            WINDOW, SOFTCAP, CODES, LATENT, False,
        )  # fmt: skip
    top, total, sums = _attend(
        row, rest, positions, first, end, top, total, sums, table, keys, values,
        key_scales, value_scales, kv_head, scale, softcap, window,
        KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, REST_PAD, N,
        WINDOW, SOFTCAP, CODES, LATENT, True,
    )  # fmt: skip
    top = tl.where(used, top, 0.0)
    if SINKS:
        sink = tl.load(sinks + heads, mask=used, other=0.0).to(tl.float32) * LOG2_E
        with_sink = tl.maximum(top, sink)
        sums = sums * tl.exp2(top - with_sink)[:, None]
        total = total * tl.exp2(top - with_sink) + tl.exp2(sink - with_sink)
    total = tl.where(used, total, 1.0)
    value_dims = tl.arange(0, VALUE_PAD)
    tl.store(
        out + places[:, None] * VALUE_DIM + value_dims[None, :],
        (sums / total[:, None]).to(out.dtype.element_ty),
        mask=used[:, None] & (value_dims[None, :] < VALUE_DIM),
    )


@triton.jit(do_not_specialize=["width", "window"])
def decode_parts(
    query,  # [T, H, KEY_DIM]
    keys,
    values,
    key_scales,  # [blocks, block_size, Hkv] float32, if CODES
    value_scales,
    tops,  # [parts, H] float32
    totals,  # [parts, H] float32
    partial,  # [parts, H, VALUE_DIM] float32
    parts,  # [parts, 4]: a sequence, its row in the batch, its tokens, the first token of the part
    count,  # [1]: of parts
    tables,
    width,
    scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    PART: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CODES: tl.constexpr,
    LATENT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Parts of PART tokens of decoding sequences, one after the other, for one group of query heads.

    Parts begin at multiples of PART, so the other sequences of the batch do not change any sum.
    """
    GROUP: tl.constexpr = HEADS // GROUPS
    group = tl.program_id(0) % GROUPS
    kv_head = group // (GROUPS // KV_HEADS)
    lanes = tl.arange(0, M)
    heads = group * GROUP + lanes
    used = lanes < GROUP
    FIRST_DIMS: tl.constexpr = VALUE_DIM if LATENT else KEY_DIM
    value_dims = tl.arange(0, VALUE_PAD)
    after_previous(EARLY)
    first_part = tl.program_id(0) // GROUPS
    for part in range(first_part, tl.load(count), tl.num_programs(0) // GROUPS):
        sequence = tl.load(parts + 4 * part)
        row_of = tl.load(parts + 4 * part + 1)
        length = tl.load(parts + 4 * part + 2)
        first = tl.load(parts + 4 * part + 3)
        end = tl.minimum(first + PART, length)
        if WINDOW:
            first = tl.maximum(first, length - window)
        if first < end:
            places = (row_of * HEADS + heads).to(tl.int64)
            row = _rows_of(query, places, used, KEY_DIM, 0, FIRST_DIMS, KEY_PAD)
            rest = row
            if LATENT:
                rest = _rows_of(query, places, used, KEY_DIM, FIRST_DIMS, KEY_DIM, REST_PAD)
            positions = tl.zeros([M], tl.int32) + (length - 1)
            top = tl.full([M], NEVER, tl.float32)
            total = tl.zeros([M], tl.float32)
            sums = tl.zeros([M, VALUE_PAD], tl.float32)
            top, total, sums = _attend(
                row, rest, positions, first, end, top, total, sums, tables + sequence.to(tl.int64) * width,
                keys, values, key_scales, value_scales, kv_head, scale, softcap, window,
                KV_HEADS, BLOCK_SIZE, KEY_DIM, VALUE_DIM, KEY_PAD, VALUE_PAD, REST_PAD, N,
                WINDOW, SOFTCAP, CODES, LATENT, True,
            )  # fmt: skip
            at = (tl.zeros([M], tl.int64) + part) * HEADS + heads
            tl.store(tops + at, top, mask=used)
            tl.store(totals + at, total, mask=used)
            tl.store(
                partial + at[:, None] * VALUE_DIM + value_dims[None, :],
                sums,
                mask=used[:, None] & (value_dims[None, :] < VALUE_DIM),
            )


@triton.jit(do_not_specialize=["window"])
def decode_join(
    tops,
    totals,
    partial,
    out,  # [T, H, VALUE_DIM]
    decodes,  # [D, 4]: a sequence, its row in the batch, its tokens, the first of its parts
    sinks,
    window,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    PART: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Join the parts of one query head of one decoding sequence, in order; zeros for a length of 0.

    Nothing is written for a decode whose row number is below 0.
    """
    after_previous(EARLY)
    decode, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(decodes + 4 * decode + 1)
    length = tl.load(decodes + 4 * decode + 2)
    dims = tl.arange(0, VALUE_PAD)
    at = tl.load(decodes + 4 * decode + 3).to(tl.int64) * HEADS + head
    first = 0
    if WINDOW:
        first = tl.maximum(0, length - window) // PART
    last = (length + PART - 1) // PART
    top = tl.full([1], NEVER, tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([VALUE_PAD], tl.float32)
    for begin in range(first, last, AT_ONCE):
        parts = begin + tl.arange(0, AT_ONCE)
        there = parts < last
        places = at + parts * HEADS
        tops_of = tl.load(tops + places, mask=there, other=NEVER)
        more = tl.load(
            partial + places[:, None] * VALUE_DIM + dims[None, :],
            mask=there[:, None] & (dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(tops_of, 0))
        kept, weights = tl.exp2(top - new_top), tl.exp2(tops_of - new_top)
        total = total * kept + tl.sum(tl.load(totals + places, mask=there, other=0.0) * weights, 0)
        sums = sums * kept + tl.sum(more * weights[:, None], 0)
        top = new_top
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        with_sink = tl.maximum(top, sink)
        sums = sums * tl.exp2(top - with_sink)
        total = total * tl.exp2(top - with_sink) + tl.exp2(sink - with_sink)
    total = tl.where(length > 0, total, 1.0)
    place = (row * HEADS + head).to(tl.int64)
    tl.store(
        out + place * VALUE_DIM + dims,
        (sums / total).to(out.dtype.element_ty),
        mask=(dims < VALUE_DIM) & (row >= 0),
    )
