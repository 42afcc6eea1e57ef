"""Small layers and contexts for the self-check."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import plain
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
                eps_head=EPS,
                scale=dim**-0.5,
                softcap=0.0,
                added=weights.added,
                heads=heads,
                window=0,
                gelu=False,
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
