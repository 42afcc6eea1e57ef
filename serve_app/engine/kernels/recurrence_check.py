"""The self-check of the native functions with a state, which compares their results with the formulas'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import torch
from torch.nn import functional

from serve_app.engine.kernels import plain
from serve_app.engine.kernels.delta import DeltaRule, DeltaWeights
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.recurrence import Convolution, Recurrence, Scan
from serve_app.engine.kernels.spans import Spans
from serve_app.engine.kernels.structs import TYPES

# Makes pairs of results and what they should be.
Results: TypeAlias = Callable[[Native, torch.Generator], Iterator[tuple[torch.Tensor, torch.Tensor]]]

HEADS, GROUPS, KEYS, VALUES = 4, 2, 6, 39
CHANNELS, STATES = 39, 19
TOKENS: Final = 6
SPANS: Final = ((0, 5, 0, 2), (5, 1, 1, 3))  # first rows, lengths, slots before and slots after


def recurrence_results(
    native: Native, random: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """With decays by head and by key, with and without correction."""
    for decays, corrected in ((1, True), (KEYS, True), (1, False)):
        query, key = (torch.randn(TOKENS, GROUPS, KEYS, generator=random) for _ in range(2))
        value = torch.randn(TOKENS, HEADS, VALUES, generator=random)
        decay = torch.rand(TOKENS, HEADS, decays, generator=random)
        part = torch.rand(TOKENS, HEADS, generator=random) if corrected else None
        pool, out = _pool(random, HEADS, KEYS, VALUES), torch.empty_like(value)
        want = pool.double()
        native.over_spans(Recurrence(query, key, value, decay, part, pool, out), Spans.of(SPANS))
        for first, length, source, target in SPANS:
            rows = slice(first, first + length)
            q, k = (each[rows].double().repeat_interleave(HEADS // GROUPS, 1) for each in (query, key))
            v, d = (each[rows].double() for each in (value, decay))
            p = None if part is None else part[rows].double()
            want[target] = want[source]
            yield out[rows], plain.recurrence(want[target], q, k, v, d, p)
        yield pool, want


def scan_results(native: Native, random: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(TOKENS, CHANNELS, generator=random)
    step, rates = (
        torch.rand(TOKENS, CHANNELS, generator=random),
        -torch.rand(CHANNELS, STATES, generator=random),
    )
    into, out_of = (torch.randn(TOKENS, STATES, generator=random) for _ in range(2))
    pool, out = _pool(random, CHANNELS, STATES), torch.empty_like(x)
    want = pool.double()
    native.over_spans(Scan(x, step, rates, into, out_of, pool, out), Spans.of(SPANS))
    for first, length, source, target in SPANS:
        rows = slice(first, first + length)
        want[target] = want[source]
        inputs = (x[rows], step[rows], rates, into[rows], out_of[rows])
        yield out[rows], plain.scan(want[target], *(each.double() for each in inputs))
    yield pool, want


def convolution_results(
    native: Native, random: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """In every type, over several widths, with and without a bias and SiLU."""
    for dtype in TYPES:
        for width, silu in ((2, False), (4, True)):
            x = torch.randn(TOKENS, CHANNELS, generator=random).to(dtype)
            weight = torch.randn(CHANNELS, width, generator=random).to(dtype)
            bias = torch.randn(CHANNELS, generator=random).to(dtype) if silu else None
            pool, out = _pool(random, width - 1, CHANNELS).to(dtype), torch.empty_like(x)
            want = pool.clone()
            native.over_spans(Convolution(x, weight, bias, silu, pool, out), Spans.of(SPANS))
            for first, length, source, target in SPANS:
                known = torch.cat([want[source], x[first : first + length]])
                want[target] = known[len(known) - width + 1 :]
                given = (known.double(), weight.double(), None if bias is None else bias.double())
                yield out[first : first + length], plain.convolution(*given, silu).to(dtype)
            yield pool, want


def delta_results(native: Native, random: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """With as many tokens as are taken together, and more, and with columns that are left over."""
    heads, groups, keys, values, width, tokens = 4, 2, 16, 80, 4, 20
    channels = 2 * groups * keys + heads * values
    factors, norm = torch.randn(width, channels, generator=random), torch.rand(values, generator=random)
    rates, biases = -torch.rand(heads, generator=random), torch.randn(heads, generator=random)
    weights = DeltaWeights(factors, rates, biases, norm, 1e-6, groups, keys)
    projected = torch.randn(tokens + 1, channels + heads * (values + 2), generator=random)
    windows, pool = _pool(random, width - 1, channels), _pool(random, heads, keys, values)
    out = torch.empty(tokens + 1, heads, values)
    want_windows, want_pool = windows.double(), pool.double()
    spans = ((0, tokens, 0, 2), (tokens, 1, 1, 3))
    native.over_spans(DeltaRule(weights, projected, windows, pool, out), Spans.of(spans))
    for first, length, source, target in spans:
        rows = projected[first : first + length].double()
        known = torch.cat([want_windows[source], rows[:, :channels]])
        want_windows[target], want_pool[target] = known[-(width - 1) :], want_pool[source]
        mixed, (gate, part, step) = (
            plain.convolution(known, factors.T.double(), None, silu=True),
            torch.split(rows[:, channels:], [heads * values, heads, heads], 1),
        )
        q, k, v = torch.split(mixed, [groups * keys, groups * keys, heads * values], 1)
        q, k = (each.view(length, groups, keys).repeat_interleave(heads // groups, 1) for each in (q, k))
        q, k = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
        decay = torch.exp(rates.double() * functional.softplus(step + biases.double()))[..., None]
        v = v.view(length, heads, values)
        made = plain.recurrence(want_pool[target], q / keys**0.5, k, v, decay, part.sigmoid())
        gated = functional.silu(gate).view(length, heads, values)
        yield out[first : first + length], plain.rms_norm(made, norm.double(), 1e-6) * gated
    yield windows, want_windows
    yield pool, want_pool


def _pool(random: torch.Generator, *shape: int) -> torch.Tensor:
    """Two slots with states, and two more."""
    pool = torch.zeros(4, *shape)
    pool[:2] = torch.randn(2, *shape, generator=random)
    return pool
