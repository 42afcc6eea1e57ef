"""Small layers, experts and contexts for the self-check."""

from __future__ import annotations

import itertools
from typing import Final

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import plain
from serve_app.engine.kernels.experts import NativeExperts
from serve_app.engine.kernels.layers import Layers, NativeCache
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LayerStruct, LinearStruct, NormStruct, Product

BLOCK: Final = 16  # tokens in a block of the caches
EPS: Final = 1e-6


def linear_of(packed: torch.Tensor, weight: torch.Tensor, product: Product) -> LinearStruct:
    """A linear without a bias; `packed` is the packed form of `weight` [N, K], by which it multiplies."""
    outputs, inputs = weight.shape
    return LinearStruct(
        weight=packed.data_ptr(), bias=None, outputs=outputs, inputs=inputs, product=product, compact=False
    )


def native_layers(
    native: Native,
    layers: list[plain.Weights],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    product: Product,
) -> tuple[Layers, list[torch.Tensor]]:
    """Layers, each with a cache, and their packed weights, which must live as long as the layers.

    Each layer has rotary factors of its own.
    """
    structs, kept = [], []
    for index, weights in enumerate(layers):
        linears = {}
        for name in ("qkv", "out", "gate_up", "down"):
            weight = getattr(weights, name)
            kept.append(native.pack_weight(weight, lasting=False))
            linears[name] = linear_of(kept[-1], weight, product)
        norms = ("norm_in", "norm_attended", "norm_mid", "norm_gated")
        structs.append(
            LayerStruct(
                **linears,
                **{name: NormStruct.of(getattr(weights, name)) for name in norms},
                q_norm=weights.q_norm.data_ptr(),
                k_norm=weights.k_norm.data_ptr(),
                mixture=None,
                delta=None,
                eps_head=EPS,
                scale=dim**-0.5,
                softcap=0.0,
                added=weights.added,
                heads=heads,
                window=0,
                gelu=False,
                gated=weights.gated,
                whole=weights.whole,
                parallel=weights.parallel,
                rotary=index,
            )
        )
    caches = tuple(NativeCache.allocate(6, BLOCK, kv_heads, dim, dim, dtype, product) for _ in layers)
    return Layers.of((LayerStruct * len(structs))(*structs), caches), kept


def context_of(length: int, tokens: int) -> ForwardContext:
    """The last `tokens` positions of a sequence of `length` (at most 96) tokens with shuffled blocks."""
    table = torch.tensor([[2, 0, 3, 5, 1, 4]], dtype=torch.int32)
    positions = torch.arange(length - tokens, length)
    return ForwardContext(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=table,
        slots=table[0].long()[positions // BLOCK] * BLOCK + positions % BLOCK,
        query_lens=(tokens,),
        lens=(length,),
        block_size=BLOCK,
    )


class SampleExperts:
    """Random experts."""

    def __init__(
        self,
        native: Native,
        random: torch.Generator,
        dtype: torch.dtype,
        product: Product,
        limit: float = 0.0,
        width: int = 38,
        inner: int = 48,
        count: int = 3,
    ) -> None:
        self.exact, self._limit, self._width = dtype == torch.float32, limit, width
        self._weights = [
            torch.randn(count, n, k, generator=random).div(k**0.5).to(dtype)
            for n, k in ((2 * inner, width), (width, inner))
        ]
        self._packed = [[native.pack_weight(each, lasting=False) for each in part] for part in self._weights]
        structs = (
            [linear_of(packed, each, product) for packed, each in zip(packs, part, strict=True)]
            for packs, part in zip(self._packed, self._weights, strict=True)
        )
        made = NativeExperts.of(*structs, gelu=False, limit=limit, alpha=1.7, added=1.0)
        if made is None:
            raise TypeError("a linear is missing")
        self.native = made

    def of(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[T, N], [T, K] and [T, K] -> [T, N], in float64."""
        up, down = (each.double() for each in self._weights)
        want = torch.zeros(len(x), self._width, dtype=torch.float64)
        for row, place in itertools.product(range(len(x)), range(chosen.shape[1])):
            if (number := int(chosen[row, place])) < len(up):
                both = (up[number] @ x[row].double())[None]
                limit = self._limit
                made = plain.clamped_gate(both, limit, 1.7, 1.0) if limit else plain.gate(both, False)
                want[row] += weights[row, place].double() * (down[number] @ made[0])
        return want
