"""Paged attention on a CPU: native functions over a cache of their own layout, or plain torch.

Only this module knows the layout of a block. Without the native functions (or with a block size or type that
they do not support) the cache has one row per token, and each sequence attends through torch over its own
gathered rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import native
from serve_app.engine.kernels.arena import HUGE_PAGE
from serve_app.engine.kernels.layers import NativeCache
from serve_app.engine.kernels.structs import LANES
from serve_app.engine.kernels.touching import Touching

# Memory requested at the start: room for this many tokens, at most this many bytes. The system provides the
# rest of a cache while the engine rests, and slowly while it works.
TOKENS_AT_ONCE: Final = 1 << 15
AT_ONCE: Final = 2 << 30


class TouchedBlocks:
    """The `BlockMemory` of a cache whose pieces are touched in parallel by a thread."""

    def __init__(self, touching: Touching, pieces: Sequence[torch.Tensor], num_blocks: int) -> None:
        """`pieces`: the tensors that `touching` touches, [num_blocks, ...] each."""
        self._touching = touching
        sizes = [piece.nbytes // num_blocks for piece in pieces]
        self._num_blocks, self._longest, self._block_bytes = num_blocks, max(sizes), sum(sizes)
        self._run_bytes = sum(min(piece.nbytes, HUGE_PAGE) for piece in pieces)

    @property
    def ready_blocks(self) -> int:
        return min(self._num_blocks, self._touching.touched_bytes // self._longest)

    @property
    def block_seconds(self) -> float:
        return self._touching.seconds_per_byte * self._block_bytes

    @property
    def run_seconds(self) -> float:
        return self._touching.seconds_per_byte * self._run_bytes


class CpuAttention:
    """An `AttentionBackend`. With the native functions a row's result depends, bit for bit, only on its
    own sequence: not on the batch, the chunks, the blocks or the number of threads."""

    def __init__(self) -> None:
        self._native = native()
        self._caches: tuple[NativeCache, ...] = ()
        self._plain: ReferenceAttention | None = None
        self._memory: TouchedBlocks | None = None

    def allocate(
        self,
        layers: tuple[LayerSpec, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        codes: torch.dtype | None = None,
    ) -> None:
        self._caches, self._plain, self._memory = (), None, None
        products = {} if self._native is None else self._native.products
        cached = codes or dtype
        if (
            self._native is None
            or not layers
            or dtype not in products
            or codes not in (None, torch.int8)
            or any(spec.index_dim for spec in layers)
            or not all(NativeCache.supports(block_size, spec.key_dim, cached) for spec in layers)
            or any(spec.latent and spec.value_dim % LANES for spec in layers)
        ):
            self._plain = ReferenceAttention()
            self._plain.allocate(layers, num_blocks, block_size, dtype, device, codes=codes)
            return
        self._caches = tuple(
            NativeCache.allocate(
                *(num_blocks, block_size, spec.num_kv_heads, spec.key_dim, spec.value_dim, cached),
                products[dtype][0],
                latent=spec.latent,
            )
            for spec in layers
        )
        pieces = [piece for cache in self._caches for piece in cache.pieces]
        token_bytes = sum(piece.nbytes for piece in pieces) // max(1, num_blocks * block_size)
        touching = self._native.touch(pieces, at_once=min(AT_ONCE, TOKENS_AT_ONCE * token_bytes))
        self._memory = TouchedBlocks(touching, pieces, num_blocks)

    @property
    def memory(self) -> TouchedBlocks | None:
        return self._memory

    @property
    def native_caches(self) -> tuple[NativeCache, ...] | None:
        """For each layer, one cache that native functions can write to; the same object until `allocate`.

        None: use `forward`.
        """
        return None if self._plain is not None else self._caches

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        latent: bool = False,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._plain is not None or self._native is None:
            if self._plain is None:
                raise RuntimeError("attention needs its cache allocated first")
            return self._plain.forward(
                *(layer, query, key, value, context),
                scale=scale,
                window=window,
                softcap=softcap,
                sinks=sinks,
                latent=latent,
                chosen=chosen,
            )
        cache = self._caches[layer]
        self._native.write_cache(key, None if latent else value, cache, context.slots)
        if query.stride(2) != 1:
            query = query.contiguous()
        return self._native.attend(
            query,
            cache,
            context,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=None if sinks is None else sinks.float().contiguous(),
        )

    def index(self, layer: int, keys: torch.Tensor, context: ForwardContext, sequence: int) -> torch.Tensor:
        if self._plain is None:
            raise RuntimeError("the cache was allocated for layers without an index")
        return self._plain.index(layer, keys, context, sequence)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if self._plain is not None:
            self._plain.copy_blocks(pairs)
            return
        for cache in self._caches:
            for piece in cache.pieces:
                for source, target in pairs:
                    piece[target] = piece[source]
