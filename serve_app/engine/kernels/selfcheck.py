"""The self-check: whether the compiled library computes correct results on this machine.

It runs once, when the library is loaded. It compares every exported function with the formulas of plain.py in
float64, on a few odd shapes, in every type, with every product that this machine supports. It takes about 20
ms on one thread. Threads divide work in the same way on every machine, which tests check.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from serve_app.engine.kernels import plain, quantized
from serve_app.engine.kernels.build import cpu_flags
from serve_app.engine.kernels.experts_check import mixture_results
from serve_app.engine.kernels.grouped import GroupedWeight, grouped_product
from serve_app.engine.kernels.heads import NativeHeads
from serve_app.engine.kernels.layers import NativeCache
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight
from serve_app.engine.kernels.recurrence_check import (
    Results,
    convolution_results,
    delta_results,
    recurrence_results,
    scan_results,
)
from serve_app.engine.kernels.samples import BLOCK, EPS, SampleExperts, context_of, linear_of, native_layers
from serve_app.engine.kernels.structs import CACHED, INPUTS, LANES, Preempted, Product
from serve_app.engine.norm import Norm, Pending

EXACT: Final = 1e-4  # of results of order one; float32 rounding gives about 1e-6
ROUNDED: Final = 3e-2  # where a product or the cache rounds to bfloat16, which has 8 bits

Check = Callable[[Native, torch.Generator], Iterator[float]]


def wrong_results(native: Native) -> list[str]:
    """The names of the exported functions that compute wrong results; empty if all results are right."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on such shapes, torch waits for its threads longer than it computes
    try:
        return [name for name, check in CHECKS.items() if not _passes(native, check)]
    finally:
        torch.set_num_threads(threads)


def _passes(native: Native, check: Check) -> bool:
    """Whether all errors are below 1, which is the tolerance. A NaN fails."""
    return all(error < 1 for error in check(native, torch.Generator().manual_seed(0)))


def _pack_weight(native: Native, random: torch.Generator) -> Iterator[float]:
    for dtype in native.products:
        weight = torch.randn(50, 38, generator=random).to(dtype)
        padded = torch.zeros(64, -(-38 // INPUTS[dtype]) * INPUTS[dtype], dtype=dtype)
        padded[:50, :38] = weight
        pairs = padded.view(64 // LANES, LANES, -1, 2)
        order = (0, 2, 3, 1) if dtype == torch.float32 else (0, 2, 1, 3)
        yield _error(native.pack_weight(weight, lasting=False), pairs.permute(order).flatten())


def _linear(native: Native, random: torch.Generator) -> Iterator[float]:
    for dtype, product in _products(native):
        weight = torch.randn(50, 38, generator=random).to(dtype)
        bias = torch.randn(64, generator=random)
        packed = native.pack_weight(weight, lasting=False)
        for rows in (1, 5, 11, 16, 17, 35):
            x = torch.randn(rows, 38, generator=random).to(dtype).float()
            got = native.linear(x, packed, bias, 50, product=product)
            yield _error(got, x.double() @ weight.double().T + bias[:50])
            yield _error(native.linear(x, packed, bias, 50, torch.bfloat16, product), got.bfloat16())
    for bits, group in itertools.product((4, 8), (16, 32, 64)):
        yield from _by_groups(native, random, bits, group, minimums=group == 32)


def _by_groups(
    native: Native, random: torch.Generator, bits: int, group: int, *, minimums: bool
) -> Iterator[float]:
    """Products over codes with scales for groups equal those of plain torch, bit for bit."""
    codes = torch.randint(2**bits, (50, 192), dtype=torch.uint8, generator=random)
    scales, zeros = torch.rand(50, 192 // group, generator=random), codes[:, ::group].contiguous()
    weight = GroupedWeight(
        codes, scales, zeros, group, bits, minimums=torch.randn_like(scales) if minimums else None
    )
    packed = native.pack_quantized(weight, lasting=False)
    for rows in (1, 5, 17, 35):
        x = torch.randn(rows, 192, generator=random)
        got = native.linear(x, packed, None, 50, product=weight.product)
        yield 0.0 if torch.equal(got, grouped_product(x, weight, None)) else 1.0


def _linears(native: Native, random: torch.Generator) -> Iterator[float]:
    """Three heads, each with its own weight."""
    for dtype, product in _products(native):
        weights = torch.randn(3, 50, 38, generator=random).to(dtype)
        packed = [native.pack_weight(each, lasting=False) for each in weights]
        heads = NativeHeads.of([linear_of(*pair, product) for pair in zip(packed, weights, strict=True)])
        if heads is None:
            continue
        for rows in (1, 5, 35):
            x = torch.randn(3, rows, 38, generator=random).to(dtype).float()
            yield _error(native.run_heads(heads, x), x.double() @ weights.double().mT)


def _pack_compact(native: Native, random: torch.Generator) -> Iterator[float]:
    """The product of a compact weight equals the product of the original weight, bit for bit."""
    weight = torch.randn(50, 326, generator=random).bfloat16()
    weight[::7, ::5] = 0.0
    weight[13, 17:20] = torch.tensor([1e30, -1e-30, 1e-39])  # exceptions
    packed, compact = native.pack_weight(weight, lasting=False), native.pack_compact(weight, lasting=False)
    if compact is None:
        yield 1.0
        return
    for product in native.products[torch.bfloat16]:
        for rows in (1, 5, 11, 16, 17, 35):
            x = torch.randn(rows, 326, generator=random)
            want = native.linear(x, packed, None, 50, product=product)
            yield 0.0 if torch.equal(native.linear(x, compact, None, 50, product=product), want) else 1.0


def _compact_is_fast(native: Native, _: torch.Generator) -> Iterator[float]:
    """Compact weights are only used on processors with an instruction that looks up bytes."""
    flags = cpu_flags()  # none where the system does not say
    yield 1.0 if native.compact and flags and "avx2" not in flags else 0.0


def _pack_quantized(native: Native, random: torch.Generator, kind: Quantization) -> Iterator[float]:
    """Products of a packed weight: equal to those of plain torch, which are in turn close to products of the
    float weight."""
    weight = torch.randn(70, 138, generator=random)
    bias = torch.randn(80, generator=random)
    codes = QuantizedWeight.of(weight, kind)
    packed = native.pack_quantized(codes, lasting=False)
    for rows in (1, 2, 5, 16, 17, 35):
        x = torch.randn(rows, 138, generator=random)
        x[-1, 5::60] *= 200  # has codes of sixteen bits
        want = quantized.product(x, codes, bias[:70])
        got = native.linear(x, packed, bias, 70, product=codes.product)
        yield 0.0 if torch.equal(got, want) else 1.0
        yield _error(want, x.double() @ codes.dequantize().double().T + bias[:70], exact=False)


def _product_rank(native: Native, _: torch.Generator) -> Iterator[float]:
    """A product is available only if the processor has its instructions. WIDENED is always available."""
    needs = {Product.PAIRS: "avx512_bf16", Product.TILES: "amx_bf16"}
    products = native.products[torch.bfloat16]
    flags = cpu_flags()  # none where the system does not say
    possible = all(not flags or product not in needs or needs[product] in flags for product in products)
    yield 0.0 if possible and Product.WIDENED in products else 1.0


def _add_norm(native: Native, random: torch.Generator) -> Iterator[float]:
    """Every norm, on its own and after adding a delta, which may have its own norm."""
    x, delta = (torch.randn(5, 39, generator=random) for _ in range(2))
    weight, other = (torch.randn(39, generator=random) for _ in range(2))
    norms = (None, Norm(weight, EPS), Norm(other, EPS, centred=True))
    for before, after in itertools.product(norms, norms):
        total = x.clone()
        got = native.add_norm(total, Pending(delta.clone(), after, 0.5), before)
        want = x.double() + 0.5 * (delta.double() if after is None else after(delta.double()))
        yield _error(total, want)
        yield _error(got, want if before is None else before(want))
        yield _error(native.add_norm(x.clone(), None, before), x if before is None else before(x.double()))


def _rope_and_cache(native: Native, random: torch.Generator) -> Iterator[float]:
    rows, heads, kv_heads = 40, 6, 2
    # Neighbouring positions across three blocks, which are written together, and some others.
    slots = torch.cat([torch.arange(5, rows), torch.tensor([46, 0, 3, 1, 44])])
    for dtype, dim, normed in itertools.product(CACHED, (40, 64, 128), ("each", "whole", "")):
        cache = NativeCache.allocate(3, BLOCK, kv_heads, dim, dim, dtype, Product.FLOATS)
        qkv = torch.randn(rows, heads + 2 * kv_heads, dim, generator=random)
        cos, sin = (torch.randn(rows, dim // 2, generator=random) for _ in range(2))
        query, key, value = torch.split(qkv.double(), [heads, kv_heads, kv_heads], dim=1)
        sizes = (heads * dim, kv_heads * dim) if normed == "whole" else (dim, dim)
        norms = (torch.randn(sizes[0], generator=random), torch.randn(sizes[1], generator=random))
        if normed:
            query, key = (
                plain.rms_norm(x.reshape(rows, -1, len(norm)), norm, EPS).view(x.shape)
                for x, norm in zip((query, key), norms, strict=True)
            )
        query, key = (plain.rotate(x, cos, sin) for x in (query, key))
        native.rope_and_cache(
            *(qkv.view(rows, -1), cos, sin, norms if normed else None, EPS, cache, slots, heads),
            whole=normed == "whole",
        )
        yield _error(qkv[:, :heads], query)
        yield from _cache_errors(cache, slots, key, value)


def _write_cache(native: Native, random: torch.Generator) -> Iterator[float]:
    for dtype in CACHED:
        cache = NativeCache.allocate(3, BLOCK, 2, 24, 40, dtype, Product.FLOATS)
        slots = torch.randperm(3 * BLOCK, generator=random)[:19]
        key, value = (torch.randn(19, 2, size, generator=random) for size in (24, 40))
        native.write_cache(key, value, cache, slots)
        yield from _cache_errors(cache, slots, key, value)


def _gated(native: Native, random: torch.Generator) -> Iterator[float]:
    x = torch.randn(5, 2 * 39, generator=random) * 4
    for gelu in (False, True):
        yield _error(native.gated(x, gelu), plain.gate(x.double(), gelu))


def _gate_heads(native: Native, random: torch.Generator) -> Iterator[float]:
    heads, gates = torch.randn(5, 3, 13, generator=random), torch.randn(5, 50, generator=random)
    want = heads.double() * gates[:, 11:].double().sigmoid().view(5, 3, 13)
    native.gate_heads(heads, gates[:, 11:])
    yield _error(heads, want)


def _widen(native: Native, random: torch.Generator) -> Iterator[float]:
    x = torch.randn(3, 39, generator=random).bfloat16()
    yield _error(native.widen(x), x.float())


def _highest(native: Native, random: torch.Generator) -> Iterator[float]:
    x = torch.randn(6, 39, generator=random)
    x[2, 7] = x[2, 30] = 9.0
    for got, want in zip(native.highest(x), x.max(-1), strict=True):
        yield 0.0 if torch.equal(got, want) else 1.0
    x[4, 33] = float("nan")
    values, places = native.highest(x)
    yield 0.0 if bool(values[4].isnan()) and int(places[4]) == 33 else 1.0


def _over_spans(native: Native, random: torch.Generator, results: Results) -> Iterator[float]:
    yield from (_error(got, want) for got, want in results(native, random))


def _attend(native: Native, random: torch.Generator) -> Iterator[float]:
    """A chunk and a decode step: float32 queries without options, then bfloat16 queries with every option."""
    length, heads, kv_heads, dim = 83, 6, 2, 32
    sinks = torch.randn(heads, generator=random)
    for (dtype, product), (codes, latent) in itertools.product(
        _products(native), ((False, False), (True, False), (False, True))
    ):
        cached = torch.int8 if codes else dtype
        cache = NativeCache.allocate(6, BLOCK, kv_heads, dim, dim, cached, product, latent=latent)
        key, value = (torch.randn(length, kv_heads, dim, generator=random).to(dtype) for _ in range(2))
        context = context_of(length, length)
        native.write_cache(key, None if latent else value, cache, context.slots)
        value = key if latent else value
        exact = dtype == torch.float32
        if codes:
            kept = (quantized.cached_rows(rows) for rows in (key, value))
            key, value = (codes * scales[..., None] for codes, scales in kept)
        for tokens in (21, 1):
            query = torch.randn(tokens, heads, dim, generator=random)
            context = context_of(length, tokens)
            got = native.attend(query, cache, context, scale=0.2)
            want = plain.attention(query.double(), key.double(), value.double(), scale=0.2)
            yield _error(got, want, exact=exact)
            rounded = query.bfloat16()
            options: dict[str, Any] = {"window": 40, "softcap": 3.0, "sinks": sinks}
            got = native.attend(rounded, cache, context, scale=0.2, **options)
            want = plain.attention(rounded.double(), key.double(), value.double(), scale=0.2, **options)
            yield _error(got, want, exact=False)


def _run_layers(native: Native, random: torch.Generator) -> Iterator[float]:
    """Two layers on a prompt and then on one more token: once as in Llama, once with every other variant."""
    width, inner, heads, kv_heads, dim, length = 64, 48, 4, 2, 32, 19
    for (dtype, product), others in itertools.product(_products(native), (False, True)):
        layers = []
        projected = (heads * (2 if others else 1) + 2 * kv_heads) * dim
        shapes = (projected, width), (width, heads * dim), (2 * inner, width), (width, inner)
        for index in range(2):
            qkv, out, gate_up, down = (
                torch.randn(n, k, generator=random).div(k**0.5).to(dtype) for n, k in shapes
            )
            norm, other = (Norm(torch.rand(width, generator=random), EPS, centred=others) for _ in range(2))
            counts = (heads, kv_heads) if others else (1, 1)
            q_norm, k_norm = (torch.rand(count * dim, generator=random) for count in counts)
            weights = plain.Weights(qkv, out, gate_up, down, q_norm, k_norm, norm, norm_mid=other)
            if others:
                more = replace(weights, norm_attended=other, norm_gated=norm, whole=True, added=0.5)
                weights = replace(more, gated=True, parallel=index == 1)
            layers.append(weights)
        states = torch.randn(length, width, generator=random)
        angles = torch.rand(2, length, dim // 2, generator=random)
        factors = [(each.cos(), each.sin()) for each in angles]
        want = states.double()
        for index, weights in enumerate(layers):
            tensors = {name: getattr(weights, name).double() for name in ("qkv", "out", "gate_up", "down")}
            cos, sin = (each.double() for each in factors[index])
            want = plain.layer(want, replace(weights, **tensors), cos, sin, heads, dim, EPS)
        with_caches, kept = native_layers(native, layers, heads, kv_heads, dim, dtype, product)
        for rows in (slice(0, length - 1), slice(length - 1, length)):
            context = context_of(rows.stop, rows.stop - rows.start)
            native.run_layers(with_caches, states[rows], [(c[rows], s[rows]) for c, s in factors], context)
            yield _error(states[rows], want[rows], exact=dtype == torch.float32)
        del kept


def _run_experts(native: Native, random: torch.Generator) -> Iterator[float]:
    """Rows that choose two of three experts, with one number beyond the last expert; gates of each form."""
    x, weights = (torch.randn(*shape, generator=random) for shape in ((5, 38), (5, 2)))
    chosen = torch.tensor([[0, 2], [2, 1], [1, 3], [0, 1], [2, 0]])
    for kind, limit in itertools.product(_products(native), (0.0, 1.5)):
        sample = SampleExperts(native, random, *kind, limit=limit)
        got = native.run_experts(sample.native, x, chosen, weights)
        yield _error(got, sample.of(x, chosen, weights), exact=sample.exact)


def _run_mixture(native: Native, random: torch.Generator) -> Iterator[float]:
    for got, want, exact in mixture_results(native, random, _products(native)):
        yield _error(got, want, exact=exact)


def _counters(native: Native, _: torch.Generator) -> Iterator[float]:
    """Functions that compute nothing: checks that no time was measured, no test made threads wait, and no
    count is negative."""
    with native.timed_parts() as seconds:
        yield sum(seconds)
    yield float(native.simulate_preemption(Preempted.NOBODY) != 0 or native.tasks_taken_over() < 0)


def _touching(native: Native, random: torch.Generator) -> Iterator[float]:
    """Touched memory keeps its content."""
    pieces = [torch.randn(size, generator=random) for size in (1, 3000)]
    want = [piece.clone() for piece in pieces]
    native.touch(pieces, at_once=0).finish()
    yield 0.0 if all(map(torch.equal, pieces, want)) else 1.0


# A check for every function of exports.py.
CHECKS: Final[dict[str, Check]] = {
    "pack_weight": _pack_weight,
    "choose_codes": _pack_compact,
    "pack_compact": _pack_compact,
    "compact_is_fast": _compact_is_fast,
    "pack_int8": partial(_pack_quantized, kind=Quantization.INT8),
    "pack_int4": partial(_pack_quantized, kind=Quantization.INT4),
    "linear": _linear,
    "linears": _linears,
    "product_rank": _product_rank,
    "add_norm": _add_norm,
    "rope_and_cache": _rope_and_cache,
    "write_cache": _write_cache,
    "gated": _gated,
    "gate_heads": _gate_heads,
    "recur": partial(_over_spans, results=recurrence_results),
    "convolve": partial(_over_spans, results=convolution_results),
    "scan": partial(_over_spans, results=scan_results),
    "run_delta": partial(_over_spans, results=delta_results),
    "widen": _widen,
    "highest": _highest,
    "attend": _attend,
    "run_layers": _run_layers,
    "run_experts": _run_experts,
    "run_mixture": _run_mixture,
    "time_parts": _counters,
    "tasks_taken_over": _counters,
    "simulate_preemption": _counters,
    "start_touching": _touching,
    "end_touching": _touching,
}


def _products(native: Native) -> Iterator[tuple[torch.dtype, Product]]:
    for dtype, products in native.products.items():
        for product in products:
            yield dtype, product


def _cache_errors(
    cache: NativeCache, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Iterator[float]:
    """The errors of a cache that should have keys and values [T, Hkv, D] at slots [T], else zeros."""
    keys, values = cache.rows()
    block, offset = slots // BLOCK, slots % BLOCK
    for got, rows in ((keys, key), (values, value)):
        want = torch.zeros_like(got)
        want[block, :, offset, : rows.shape[-1]] = rows.to(want)
        yield _error(got, want, exact=cache.keys.dtype == torch.float32)


def _error(got: torch.Tensor, want: torch.Tensor, *, exact: bool = True) -> float:
    """The largest difference, divided by the tolerance for the largest value. NaN if a value is NaN."""
    tolerance = (EXACT if exact else ROUNDED) * max(1.0, float(want.abs().max()))
    return float((got.double() - want.double()).abs().max()) / tolerance
