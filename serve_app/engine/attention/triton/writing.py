"""Writes keys and values to the cache, unchanged or as codes, in Triton. Depends only on tensors."""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.codes import codes_of, peaks_of, scales_of


@triton.jit
def write_rows(
    key,  # [T, KV_HEADS * KEY_DIM]
    value,  # [T, KV_HEADS * VALUE_DIM]
    keys,
    values,
    slots,  # [T] int64; below 0: a null row, which is not written
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Write one row's keys and values to the row's slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    for start in range(0, KEY_SIZE, STEP):
        dims = start + tl.arange(0, STEP)
        there = (dims < KEY_SIZE) & (slot >= 0)
        numbers = tl.load(key + row * KEY_SIZE + dims, mask=there)
        tl.store(keys + slot * KEY_SIZE + dims, numbers.to(keys.dtype.element_ty), mask=there)
    for start in range(0, VALUE_SIZE, STEP):
        dims = start + tl.arange(0, STEP)
        there = (dims < VALUE_SIZE) & (slot >= 0)
        numbers = tl.load(value + row * VALUE_SIZE + dims, mask=there)
        tl.store(values + slot * VALUE_SIZE + dims, numbers.to(values.dtype.element_ty), mask=there)


@triton.jit
def write_codes(
    key,  # [T, KV_HEADS, KEY_DIM]
    value,  # [T, KV_HEADS, VALUE_DIM]
    keys,
    values,
    key_scales,  # [slots, KV_HEADS] float32
    value_scales,
    slots,  # [T] int64; below 0: a null row, which is not written
    KV_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):
    """Write one row's keys and values, as codes and scales, to the row's slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    _write_heads(
        key + row * KV_HEADS * KEY_DIM, keys, key_scales, slot, KV_HEADS, HEADS_PAD, KEY_DIM, KEY_PAD
    )
    _write_heads(
        value + row * KV_HEADS * VALUE_DIM,
        values,
        value_scales,
        slot,
        KV_HEADS,
        HEADS_PAD,
        VALUE_DIM,
        VALUE_PAD,
    )


@triton.jit
def _write_heads(
    source,
    pool,
    scales,
    slot,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    DIM: tl.constexpr,
    PAD: tl.constexpr,
):
    heads = tl.arange(0, HEADS_PAD)
    dims = tl.arange(0, PAD)
    there = (heads < HEADS)[:, None] & (dims < DIM)[None, :] & (slot >= 0)
    places = heads[:, None] * DIM + dims[None, :]
    numbers = tl.load(source + places, mask=there, other=0.0).to(tl.float32)
    kind: tl.constexpr = pool.dtype.element_ty
    found, inverse = scales_of(peaks_of(numbers), kind)
    tl.store(pool + slot * HEADS * DIM + places, codes_of(numbers, inverse, kind), mask=there)
    tl.store(scales + slot * HEADS + heads, found, mask=(heads < HEADS) & (slot >= 0))
