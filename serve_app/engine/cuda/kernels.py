"""The work of fused layers besides dense products and attention, in Triton.

Numbers are read in the type of the weights, computed in float32 and rounded once. The functions depend
only on tensors; `launch.py` calls them, on a device or, for tests, in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.codes import codes_of, peaks_of, scales_of
from serve_app.engine.attention.triton.early import after_previous


@triton.jit
def _normalise(
    numbers,  # [PAD] float32
    there,  # [PAD]: those that are of the row
    weights,  # [PAD] float32
    eps,
    SIZE: tl.constexpr,
    CENTRED: tl.constexpr,
):
    """RMSNorm of a row; LayerNorm without a bias if CENTRED."""
    if CENTRED:
        numbers = tl.where(there, numbers - tl.sum(numbers, 0) / SIZE, 0.0)
    return numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / SIZE + eps) * weights


@triton.jit
def add_norm(
    residual,  # [T, SIZE] float32
    delta,  # [T, SIZE]
    after,  # [SIZE] float32: the weight of a norm of the delta, if AFTER
    before,  # [SIZE] float32: the weight of the norm that goes out, if BEFORE
    out,  # [T, SIZE]
    eps_after,
    eps_before,
    scale,
    SIZE: tl.constexpr,
    PAD: tl.constexpr,
    DELTA: tl.constexpr,
    AFTER: tl.constexpr,
    BEFORE: tl.constexpr,
    CENTRED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One row: add `scale` times the delta, normalised or not, to the residual; output the residual,
    normalised or not."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    dims = tl.arange(0, PAD)
    there = dims < SIZE
    weights_after = tl.load(after + dims, mask=there & AFTER, other=0.0)
    weights_before = tl.load(before + dims, mask=there & BEFORE, other=0.0)
    after_previous(EARLY)
    numbers = tl.load(residual + row + dims, mask=there, other=0.0)
    if DELTA:
        added = tl.load(delta + row + dims, mask=there, other=0.0).to(tl.float32)
        if AFTER:
            added = _normalise(added, there, weights_after, eps_after, SIZE, CENTRED)
        numbers += scale * added
        tl.store(residual + row + dims, numbers, mask=there)
    if BEFORE:
        numbers = _normalise(numbers, there, weights_before, eps_before, SIZE, CENTRED)
    tl.store(out + row + dims, numbers.to(out.dtype.element_ty), mask=there)


@triton.jit
def normalise_part(
    x,  # [T, WIDTH]
    weight,  # [SIZE] float32
    eps,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
    PAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Replace SIZE numbers of one row, starting at FIRST, with their RMSNorm."""
    place = x + tl.program_id(0).to(tl.int64) * WIDTH + FIRST + tl.arange(0, PAD)
    there = tl.arange(0, PAD) < SIZE
    weights = tl.load(weight + tl.arange(0, PAD), mask=there, other=0.0)
    after_previous(EARLY)
    numbers = tl.load(place, mask=there, other=0.0).to(tl.float32)
    numbers = _normalise(numbers, there, weights, eps, SIZE, False)
    tl.store(place, numbers.to(x.dtype.element_ty), mask=there)


@triton.jit
def gated(
    gate_up,  # [T, 2 SIZE]
    out,  # [T, SIZE]
    SIZE: tl.constexpr,
    STEP: tl.constexpr,
    GELU: tl.constexpr,
    EARLY: tl.constexpr,
):
    """STEP numbers of one row: the activation of its gate half, times its other half."""
    after_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * STEP + tl.arange(0, STEP)
    there = dims < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + dims, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + dims, mask=there, other=0.0).to(tl.float32)
    if GELU:  # 0.5 x (1 + tanh u) is x sigmoid(2 u)
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out + row * SIZE + dims, (active * up).to(out.dtype.element_ty), mask=there)


@triton.jit
def rope_and_cache(
    qkv,  # [T, (HEADS + 2 KV_HEADS) * 2 HALF]
    cos,  # [T, HALF] float32
    sin,
    query_norm,  # [2 HALF] float32
    key_norm,
    eps,
    query,  # [T, HEADS, 2 HALF]
    keys,  # [slots, KV_HEADS, 2 HALF]
    values,
    key_scales,  # [slots, KV_HEADS] float32, if CODES
    value_scales,
    slots,  # [T] int64; below 0: a null row, which writes nothing to the cache
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    AT_ONCE: tl.constexpr,
    NORMS: tl.constexpr,
    CODES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """AT_ONCE heads of one row: output the queries, and write keys and values, or their codes, to the row's
    slot."""
    after_previous(EARLY)
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    half = tl.arange(0, HALF_PAD)
    inside = half < HALF
    there = (heads < ALL)[:, None] & inside[None, :]
    source = qkv + (row * ALL + heads)[:, None] * 2 * HALF + half[None, :]
    low = tl.load(source, mask=there, other=0.0)
    high = tl.load(source + HALF, mask=there, other=0.0)
    slot = tl.load(slots + row)

    kept = (heads >= HEADS + KV_HEADS) & (heads < ALL) & (slot >= 0)
    _keep(
        values, value_scales, slot * KV_HEADS + heads - HEADS - KV_HEADS, low, high, half, kept, HALF, CODES
    )

    low = low.to(tl.float32)
    high = high.to(tl.float32)
    is_query = (heads < HEADS)[:, None] & there
    if NORMS:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
        of_query = tl.load(query_norm + half, mask=inside, other=0.0)[None, :]
        of_key = tl.load(key_norm + half, mask=inside, other=0.0)[None, :]
        low = low * scale * tl.where(is_query, of_query, of_key)
        of_query = tl.load(query_norm + HALF + half, mask=inside, other=0.0)[None, :]
        of_key = tl.load(key_norm + HALF + half, mask=inside, other=0.0)[None, :]
        high = high * scale * tl.where(is_query, of_query, of_key)
    cosine = tl.load(cos + row * HALF + half, mask=inside, other=0.0)[None, :]
    sine = tl.load(sin + row * HALF + half, mask=inside, other=0.0)[None, :]
    turned_low = low * cosine - high * sine
    turned_high = high * cosine + low * sine

    place = query + (row * HEADS + heads)[:, None] * 2 * HALF + half[None, :]
    tl.store(place, turned_low.to(query.dtype.element_ty), mask=is_query)
    tl.store(place + HALF, turned_high.to(query.dtype.element_ty), mask=is_query)
    kept = (heads >= HEADS) & (heads < HEADS + KV_HEADS) & (slot >= 0)
    _keep(keys, key_scales, slot * KV_HEADS + heads - HEADS, turned_low, turned_high, half, kept, HALF, CODES)


@triton.jit
def _keep(
    pool,
    scales,
    rows,  # [AT_ONCE]: of the pool
    low,  # [AT_ONCE, HALF_PAD]
    high,
    half,  # [HALF_PAD]
    kept,  # [AT_ONCE]: whether the row is written
    HALF: tl.constexpr,
    CODES: tl.constexpr,
):
    """Write the two halves of some heads to rows of a pool."""
    place = pool + rows[:, None] * 2 * HALF + half[None, :]
    there = kept[:, None] & (half < HALF)[None, :]
    if CODES:
        low = low.to(tl.float32)
        high = high.to(tl.float32)
        kind: tl.constexpr = pool.dtype.element_ty
        found, inverse = scales_of(tl.maximum(peaks_of(low), peaks_of(high)), kind)
        tl.store(scales + rows, found, mask=kept)
        low = codes_of(low, inverse, kind)
        high = codes_of(high, inverse, kind)
    tl.store(place, low.to(pool.dtype.element_ty), mask=there)
    tl.store(place + HALF, high.to(pool.dtype.element_ty), mask=there)
