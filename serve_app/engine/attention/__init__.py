"""Paged attention: one signature, several backends with equal results.

A backend owns the layout of its cache; no other module depends on what a block looks like inside. `forward`
writes the step's keys and values into the cache at `context.slots`. After that, every query row sees all
cached tokens of its own sequence, up to and including itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from serve_app.engine.block_memory import BlockMemory
from serve_app.engine.forward_context import ForwardContext


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One attention layer's shape in the cache, learnt from a dry run at load."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False  # a value is the first numbers of its key, and is not kept beside it
    index_dim: int = 0  # of a token's key in the layer's index, which chooses what rows see; 0: it has none

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """The bytes of one token in a cache of `dtype`. int8 stands for all codes, with a float32 scale for
        each key and value."""
        kept = (self.key_dim,) if self.latent else (self.key_dim, self.value_dim)
        scale = torch.float32.itemsize if dtype == torch.int8 else 0
        index = self.index_dim * dtype.itemsize + scale if self.index_dim else 0
        return self.num_kv_heads * (sum(kept) * dtype.itemsize + len(kept) * scale) + index


# The codes of a cache, by the setting `kv_cache_dtype`.
CACHED: Final[Mapping[str, torch.dtype | None]] = {
    "auto": None,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


class AttentionBackend(Protocol):
    """The interface between the engine and a device's attention."""

    @property
    def memory(self) -> BlockMemory | None:
        """How many blocks the system has backed with memory; None if all of them."""
        ...

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
        """Allocate the cache: `num_blocks` blocks for every layer.

        `dtype`: of keys and values. `codes`: the cache keeps keys and values as int8 or as float8_e4m3fn,
        with a float32 scale for each token and KV head (`kernels.quantized.cached_rows`); no layer may be
        latent then.
        """
        ...

    def forward(
        self,
        layer: int,
        query: torch.Tensor,  # [T, H, D] with RoPE applied
        key: torch.Tensor,  # [T, Hkv, D]
        value: torch.Tensor,  # [T, Hkv, Dv]
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,  # a query sees at most this many last tokens, itself included
        softcap: float | None = None,  # scores = tanh(scores / softcap) * softcap
        sinks: torch.Tensor | None = None,  # [H]: one more logit a head, dropped after the softmax
        latent: bool = False,  # the layer is latent: `value` is the first numbers of `key`
    ) -> torch.Tensor:
        """Write K and V, attend; returns [T, H, Dv]."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in every layer: copy-on-write of a fork."""
        ...


class IndexedBackend(Protocol):
    """A backend for layers with an index. Its `forward` also takes `chosen` [T, K]: the positions in its
    sequence that each row sees, of those that it could see; -1 is none."""

    def index(self, layer: int, keys: torch.Tensor, context: ForwardContext, sequence: int) -> torch.Tensor:
        """Write the index keys [N, D] of a sequence's rows; returns those of all its tokens, [L, D]."""
        ...
