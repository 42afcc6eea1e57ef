"""Products with weights as packed codes, in Triton: for few rows and for many, with the same sums.

Weights are the left factor of each product and rows the right one. So a device multiplies by instructions of
one kind, however many rows there are. The shape of a weight alone decides the order of a row's sum: codes are
multiplied in steps of 128 inputs, steps are added up in a fixed number of parts, and the parts in order.

The codes of a step lie so that word w of an output has the inputs w, w + WIDTH, w + 2 WIDTH and so on. The
functions depend only on tensors; `codes_product.py` and `cuda/experts` call them, on a device or, for tests,
in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from serve_app.engine.attention.triton.early import after_previous
from serve_app.engine.attention.triton.product import product
from serve_app.engine.weights.decoding import Form

INT4 = tl.constexpr(int(Form.INT4))
INT8 = tl.constexpr(int(Form.INT8))
FP8 = tl.constexpr(int(Form.FP8))


@triton.jit
def _number(words, CODE: tl.constexpr, FORM: tl.constexpr):
    """[N, W] int32 -> float32: the code at the place CODE of each word."""
    if FORM == INT4:
        number = ((words >> (4 * CODE)) & 15).to(tl.float32) - 8.0
    elif FORM == INT8:
        number = ((words << (24 - 8 * CODE)) >> 24).to(tl.float32)
    elif FORM == FP8:  # its exponent is too small by 120 in float32
        code = words >> (8 * CODE)
        number = (((code & 128) << 24) | ((code & 127) << 20)).to(
            tl.float32, bitcast=True
        ) * 1.329227995784916e36
    else:  # by 126
        code = words >> (4 * CODE)
        number = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    return number


@triton.jit
def _four(words, FORM: tl.constexpr, DECODE: tl.constexpr, REGISTERS: tl.constexpr, kind: tl.constexpr):
    """[N, W] int32 -> four of [N, W]: the codes at each place of the words, of the type `kind`."""
    if DECODE is None:
        found = (
            _number(words, 0, FORM).to(kind),
            _number(words, 1, FORM).to(kind),
            _number(words, 2, FORM).to(kind),
            _number(words, 3, FORM).to(kind),
        )
    elif kind == tl.float16:
        found = tl.inline_asm_elementwise(
            DECODE, REGISTERS, [words], (tl.float16, tl.float16, tl.float16, tl.float16), True, 2
        )
    else:
        found = tl.inline_asm_elementwise(
            DECODE, REGISTERS, [words], (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2
        )
    return found


@triton.jit
def _eight(words, FORM: tl.constexpr, DECODE: tl.constexpr, REGISTERS: tl.constexpr, kind: tl.constexpr):
    """[N, W] int32 -> eight of [N, W]: the codes at each place of the words, of the type `kind`."""
    if DECODE is None:
        found = (
            _number(words, 0, FORM).to(kind),
            _number(words, 1, FORM).to(kind),
            _number(words, 2, FORM).to(kind),
            _number(words, 3, FORM).to(kind),
            _number(words, 4, FORM).to(kind),
            _number(words, 5, FORM).to(kind),
            _number(words, 6, FORM).to(kind),
            _number(words, 7, FORM).to(kind),
        )
    elif kind == tl.float16:
        found = tl.inline_asm_elementwise(
            DECODE,
            REGISTERS,
            [words],
            (tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            True,
            2,
        )
    else:
        found = tl.inline_asm_elementwise(
            DECODE,
            REGISTERS,
            [words],
            (
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            True,
            2,
        )
    return found


@triton.jit
def sum_codes(
    rows,  # [M] pointers to the first input of each row
    there,  # [M]: which rows there are
    words,  # [N] pointers to the first word of each output
    inside,  # [N]: which outputs there are
    scales,  # [N] pointers to the scales of the first group, if GROUP
    zeros,  # [N] pointers to the zeros of the first group, if ZEROS
    groups_apart,  # numbers between the scales of two groups
    first,  # steps
    last,
    K: tl.constexpr,
    STEP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FORM: tl.constexpr,
    PLACES: tl.constexpr,  # codes of a word
    GROUP: tl.constexpr,  # inputs with one scale; 0: the caller scales
    ZEROS: tl.constexpr,
    WHOLE: tl.constexpr,  # no output hangs over
    DECODE: tl.constexpr,
    REGISTERS: tl.constexpr,
):
    """[N, M] float32: the products of weights and rows over the inputs of the steps `first` to `last`."""
    WIDTH: tl.constexpr = STEP // PLACES
    T: tl.constexpr = rows.dtype.element_ty
    width = tl.arange(0, WIDTH)
    sums = tl.zeros([N, M], tl.float32)
    for step in range(first, last):
        held = tl.load(
            words[:, None] + (width + step * WIDTH)[None, :], mask=inside[:, None] | WHOLE, other=0
        )
        numbers = (
            _four(held, FORM, DECODE, REGISTERS, T)
            if PLACES == 4
            else _eight(held, FORM, DECODE, REGISTERS, T)
        )
        part = tl.zeros([N, M], tl.float32)
        for place in tl.static_range(PLACES):
            begin = step * STEP + place * WIDTH
            known = there[None, :] & ((width + begin < K)[:, None] | (K % STEP == 0))
            some = tl.load(rows[None, :] + (width + begin)[:, None], mask=known, other=0.0)
            weights = numbers[place]
            if ZEROS:
                zero = tl.load(zeros + groups_apart * (begin // GROUP), mask=inside | WHOLE, other=0)
                weights -= zero.to(T)[:, None]
            if GROUP == 0:
                sums += product(weights, some)
            else:
                if place * WIDTH % GROUP == 0:
                    part = product(weights, some)
                else:
                    part += product(weights, some)
                if (place + 1) * WIDTH % GROUP == 0 or place + 1 == PLACES:
                    scale = tl.load(scales + groups_apart * (begin // GROUP), mask=inside | WHOLE, other=0.0)
                    sums += part * scale.to(tl.float32)[:, None]
    return sums


@triton.jit(do_not_specialize=["rows"])
def multiply_codes(
    x,  # [rows, K]
    words,  # [outputs, steps * WIDTH] int32
    scales,  # [groups, outputs], or [outputs] if GROUP is 0
    zeros,  # [groups, outputs] int8, if ZEROS
    bias,  # [outputs], if BIAS
    out,  # [rows, outputs]
    partial,  # [PARTS, rows, outputs] float32, if APART
    done,  # [tiles] int32, if APART: zeros, also afterwards
    rows,
    outputs,
    K: tl.constexpr,
    STEP: tl.constexpr,  # inputs whose codes are packed together
    STEPS: tl.constexpr,
    PARTS: tl.constexpr,
    APART: tl.constexpr,  # each part has programs of its own
    M: tl.constexpr,
    N: tl.constexpr,
    FORM: tl.constexpr,
    PLACES: tl.constexpr,  # codes of a word
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    WHOLE: tl.constexpr,
    BIAS: tl.constexpr,
    DECODE: tl.constexpr,
    REGISTERS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """N numbers of the results of M rows.

    If APART, each program computes one part of the sums, and the last one to end adds up the parts.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    tile = tl.program_id(1) // PARTS if APART else tl.program_id(1)
    output = tile * N + tl.arange(0, N)
    there, inside = row < rows, output < outputs
    WORDS: tl.constexpr = STEPS * (STEP // PLACES)
    AT_ONCE: tl.constexpr = (STEPS + PARTS - 1) // PARTS
    words_of = words + output.to(tl.int64) * WORDS
    rows_of = x + row.to(tl.int64) * K
    after_previous(EARLY)
    sums = tl.zeros([N, M], tl.float32)
    own = tl.program_id(1) % PARTS if APART else 0
    for number in range(1 if APART else PARTS):
        part = own + number
        sums += sum_codes(
            rows_of, there, words_of, inside, scales + output, zeros + output, outputs,
            part * AT_ONCE, tl.minimum((part + 1) * AT_ONCE, STEPS),
            K, STEP, M, N, FORM, PLACES, GROUP, ZEROS, WHOLE, DECODE, REGISTERS,
        )  # fmt: skip
    held = inside[:, None] & there[None, :]
    last = True
    if APART:
        place = partial + row.to(tl.int64)[None, :] * outputs + output[:, None]
        size = rows.to(tl.int64) * outputs
        tl.store(place + own * size, sums, mask=held)
        tl.debug_barrier()  # every thread has written before the program counts as done
        counter = done + tl.program_id(0) * (tl.num_programs(1) // PARTS) + tile
        last = tl.atomic_add(counter, 1, sem="acq_rel") == PARTS - 1
        if last:
            tl.store(counter, 0)
            sums = tl.zeros([N, M], tl.float32)
            for part in range(PARTS):
                sums += tl.load(place + part * size, mask=held, other=0.0, cache_modifier=".cg")
    if last:
        if GROUP == 0:
            scale = tl.load(scales + output, mask=inside, other=0.0)
            sums *= scale.to(tl.float32)[:, None]
        if BIAS:
            sums += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[:, None]
        place_of = out + row.to(tl.int64)[None, :] * outputs + output[:, None]
        tl.store(place_of, sums.to(out.dtype.element_ty), mask=held)
