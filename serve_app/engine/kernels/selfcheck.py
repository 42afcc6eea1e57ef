"""Does the compiled library compute what it should on this very machine? Asked once, when it is loaded.

A few odd shapes against plain torch in float64, in some milliseconds.
"""

from __future__ import annotations

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels.native import LANES, Native, NativeCache
from serve_app.engine.kernels.structs import Product

TOLERANCE = 1e-4  # of results of order one; float32 rounding gives about 1e-6


def wrong_results(native: Native) -> list[str]:
    """Names of the functions that are off; empty when all is well."""
    random = torch.Generator().manual_seed(0)
    checks = {"linear": _linear, "rms norm": _norm, "gate": _gate, "attention": _attention}
    return [name for name, error in checks.items() if not error(native, random) < TOLERANCE]


def _linear(native: Native, random: torch.Generator) -> float:
    worst = 0.0
    for dtype, products in native.products.items():
        weight = torch.randn(50, 38, generator=random).to(dtype)
        bias = torch.randn(-(-50 // LANES) * LANES, generator=random)
        packed = native.pack_weight(weight)
        for rows in (1, 5, 11, 16, 17, 35):
            x = torch.randn(rows, 38, generator=random).to(dtype).float()
            want = x.double() @ weight.double().T + bias[:50]
            for product in products:
                got = native.linear(x, packed, bias, 50, product=product)
                worst = max(worst, _difference(got, want))
    return worst


def _norm(native: Native, random: torch.Generator) -> float:
    x, delta, weight = (torch.randn(*shape, generator=random) for shape in ((5, 39), (5, 39), (39,)))
    total = x.double() + delta
    want = total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
    return _difference(native.add_rmsnorm(x.clone(), delta, weight, 1e-6), want)


def _gate(native: Native, random: torch.Generator) -> float:
    x = torch.randn(5, 2 * 39, generator=random) * 4
    gate, up = x.double().chunk(2, dim=-1)
    silu = _difference(native.gated(x), torch.nn.functional.silu(gate) * up)
    gelu = torch.nn.functional.gelu(gate, approximate="tanh") * up
    return max(silu, _difference(native.gated(x, gelu=True), gelu))


def _attention(native: Native, random: torch.Generator) -> float:
    length, tokens, heads, kv_heads, dim = 37, 5, 6, 2, 24
    cache = NativeCache.allocate(4, 16, kv_heads, dim, dim, torch.float32, Product.FLOATS)
    query = torch.randn(tokens, heads, dim, generator=random)
    key, value = (torch.randn(length, kv_heads, dim, generator=random) for _ in range(2))
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    position = torch.arange(length)
    native.write_cache(key, value, cache, table[0].long()[position // 16] * 16 + position % 16)
    context = ForwardContext(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=table,
        slots=torch.empty(0, dtype=torch.int64),
        query_lens=(tokens,),
        lens=(length,),
        block_size=16,
    )
    got = native.attend(query, cache, context, scale=dim**-0.5)
    group = heads // kv_heads
    scores = (
        torch.einsum("thd,lhd->htl", query.double(), key.double().repeat_interleave(group, 1)) * dim**-0.5
    )
    hidden = position > position[-tokens:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return _difference(got, torch.einsum("htl,lhd->thd", weights, value.double().repeat_interleave(group, 1)))


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest absolute difference; NaN if there is one."""
    return float((got.double() - want).abs().max())
