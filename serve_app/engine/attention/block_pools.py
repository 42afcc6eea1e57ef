"""The cache of a GPU's backends: blocks of [block_size, Hkv, D] a layer, on any device."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.transfer import send


class BlockPools:
    """Keys [blocks, block_size, Hkv, D] and values [blocks, block_size, Hkv, Dv] of every layer."""

    memory: Final = None  # torch writes zeros to all of it

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def allocate(
        self,
        layers: tuple[LayerSpec, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        codes: bool = False,
    ) -> None:
        if codes:
            raise ValueError(
                "engine.kv_cache_dtype int8 is for attention on a CPU (cpu, reference), not for this GPU's; "
                "take it out, or set it to auto"
            )

        def pool(heads: int, dim: int) -> torch.Tensor:
            return torch.zeros(num_blocks, block_size, heads, dim, dtype=dtype, device=device)

        self._keys = [pool(spec.num_kv_heads, spec.key_dim) for spec in layers]
        self._values = [pool(spec.num_kv_heads, spec.value_dim) for spec in layers]

    def pools(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, for kernels that write to them."""
        return self._keys[layer], self._values[layer]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        sources, targets = send(
            self._keys[0].device, *(np.array(ids, dtype=np.int64) for ids in zip(*pairs, strict=True))
        )
        for pool in (*self._keys, *self._values):
            pool[targets] = pool[sources]
