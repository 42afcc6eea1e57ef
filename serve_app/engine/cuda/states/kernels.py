"""Convolutions and recurrences over the spans of a step in Triton, token by token.

A span's fields (its first row, its length, the slot that it reads and the slot that it writes) are read from
the device, so a graph may replay a launch with other spans. Prompts and decodes share one arithmetic: a state
does not depend on how a prompt was cut. Everything here depends only on tensors: `launch.py` calls these
functions, on a device or, for tests, in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.early import after_previous


@triton.jit
def _fields(span, width):
    """The first row, the length and the slots of a span; `width`: the spans of a table."""
    return tl.load(span), tl.load(span + width), tl.load(span + 2 * width), tl.load(span + 3 * width)


@triton.jit
def _known(x, pool, first, source, token, channels, there, CHANNELS: tl.constexpr, PAST: tl.constexpr):
    """The inputs of one token of a span; tokens below 0 are those of the state."""
    past = tl.load(
        pool + (source * PAST + PAST + token) * CHANNELS + channels, mask=there & (token < 0), other=0.0
    )
    now = tl.load(x + (first + token) * CHANNELS + channels, mask=there & (token >= 0), other=0.0)
    return tl.where(token < 0, past, now)


@triton.jit(do_not_specialize=["width", "rows"])
def convolve(
    x,  # [rows, CHANNELS]
    factors,  # [CHANNELS, PAST + 1]
    bias,  # [CHANNELS], if BIAS
    pool,  # [slots, PAST, CHANNELS]
    out,  # [rows, CHANNELS]
    spans,  # [4, width] int64
    owners,  # [rows] int64: the span of each row; below 0: none
    width,
    rows,
    CHANNELS: tl.constexpr,
    PAST: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """AT_ONCE channels of TOKENS rows. The program with a span's last row writes the span's new state."""
    after_previous(EARLY)
    channels = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = channels < CHANNELS
    begin = tl.program_id(0) * TOKENS
    for row in range(begin, tl.minimum(begin + TOKENS, rows)):
        owner = tl.load(owners + row)
        if owner >= 0:
            first, length, source, target = _fields(spans + owner, width)
            token = row - first
            total = tl.zeros([AT_ONCE], dtype=tl.float32)
            for k in range(PAST + 1):
                known = _known(x, pool, first, source, token - PAST + k, channels, there, CHANNELS, PAST)
                factor = tl.load(factors + channels * (PAST + 1) + k, mask=there, other=0.0)
                total += known.to(tl.float32) * factor.to(tl.float32)
            if BIAS:
                total += tl.load(bias + channels, mask=there, other=0.0).to(tl.float32)
            if SILU:
                total = total * tl.sigmoid(total)
            place = (first + token) * CHANNELS + channels
            tl.store(out + place, total.to(out.dtype.element_ty), mask=there)
            if token == length - 1:
                for k in range(PAST):
                    kept = _known(x, pool, first, source, length - PAST + k, channels, there, CHANNELS, PAST)
                    tl.store(pool + (target * PAST + k) * CHANNELS + channels, kept, mask=there)


@triton.jit(do_not_specialize=["width"])
def recur(
    query,  # [T, HEADS / SHARE, K] float32, as all tensors but `spans`
    key,  # [T, HEADS / SHARE, K]
    value,  # [T, HEADS, V]
    decay,  # [T, HEADS, DECAYS]: 1 or K
    part,  # [T, HEADS], if PARTS
    pool,  # [slots, HEADS, K, V]
    out,  # [T, HEADS, V]
    spans,  # [4, width] int64
    width,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    K_PAD: tl.constexpr,
    DECAYS: tl.constexpr,
    PARTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """AT_ONCE columns of the matrix of one head, over all tokens of a span: columns do not mix."""
    after_previous(EARLY)
    first, length, source, target = _fields(spans + tl.program_id(0), width)
    if length == 0:
        return
    head = tl.program_id(1)
    dims = tl.arange(0, K_PAD)
    columns = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    inside, there = dims < K, columns < V
    places = dims[:, None] * V + columns[None, :]
    held = inside[:, None] & there[None, :]
    state = tl.load(pool + (source * HEADS + head) * K * V + places, mask=held, other=0.0)
    for token in range(length):
        row = (first + token) * HEADS + head
        shared = ((first + token) * (HEADS // SHARE) + head // SHARE) * K
        if DECAYS == 1:
            state *= tl.load(decay + row)
        else:
            state *= tl.load(decay + row * K + dims, mask=inside, other=0.0)[:, None]
        keys = tl.load(key + shared + dims, mask=inside, other=0.0)
        delta = tl.load(value + row * V + columns, mask=there, other=0.0)
        if PARTS:
            delta = (delta - tl.sum(state * keys[:, None], 0)) * tl.load(part + row)
        state += keys[:, None] * delta[None, :]
        queries = tl.load(query + shared + dims, mask=inside, other=0.0)
        tl.store(out + row * V + columns, tl.sum(state * queries[:, None], 0), mask=there)
    tl.store(pool + (target * HEADS + head) * K * V + places, state, mask=held)


@triton.jit(do_not_specialize=["width"])
def scan_channels(
    x,  # [T, CHANNELS] float32, as all tensors but `spans`
    step,  # [T, CHANNELS]
    rates,  # [CHANNELS, N]
    into,  # [T, N]
    out_of,  # [T, N]
    pool,  # [slots, CHANNELS, N]
    out,  # [T, CHANNELS]
    spans,  # [4, width] int64
    width,
    CHANNELS: tl.constexpr,
    N: tl.constexpr,
    N_PAD: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """AT_ONCE channels over all tokens of a span."""
    after_previous(EARLY)
    first, length, source, target = _fields(spans + tl.program_id(0), width)
    if length == 0:
        return
    channels = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    numbers = tl.arange(0, N_PAD)
    there, inside = channels < CHANNELS, numbers < N
    places = channels[:, None] * N + numbers[None, :]
    held = there[:, None] & inside[None, :]
    rate = tl.load(rates + places, mask=held, other=0.0)
    state = tl.load(pool + source * CHANNELS * N + places, mask=held, other=0.0)
    for token in range(length):
        row = first + token
        steps = tl.load(step + row * CHANNELS + channels, mask=there, other=0.0)
        inputs = tl.load(x + row * CHANNELS + channels, mask=there, other=0.0)
        state *= tl.exp(steps[:, None] * rate)
        state += (steps * inputs)[:, None] * tl.load(into + row * N + numbers, mask=inside, other=0.0)[
            None, :
        ]
        reads = tl.load(out_of + row * N + numbers, mask=inside, other=0.0)
        tl.store(out + row * CHANNELS + channels, tl.sum(state * reads[None, :], 1), mask=there)
    tl.store(pool + target * CHANNELS * N + places, state, mask=held)
