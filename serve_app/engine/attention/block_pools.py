"""The cache of the backends for GPUs: blocks of [block_size, Hkv, D] per layer, on any device.

For codes, the scales of keys and values are in separate pools. The bytes of float8 codes are uint8 here, as
every device can copy those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.kernels.quantized import FLOAT8, cached_rows, code_values, stored_as
from serve_app.engine.transfer import send


@dataclass(frozen=True, slots=True)
class Pools:
    """Keys or values of one layer."""

    rows: torch.Tensor  # [blocks, block_size, Hkv, D]
    scales: torch.Tensor | None  # [blocks, block_size, Hkv] float32, if rows are codes

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows [T, Hkv, D] to slots [T]."""
        scales = None
        if self.scales is not None:
            rows, scales = cached_rows(rows, FLOAT8 if self.rows.dtype == torch.uint8 else torch.int8)
            self.scales.flatten(0, 1).index_copy_(0, slots, scales)
        self.rows.flatten(0, 1).index_copy_(0, slots, rows.to(self.rows.dtype))

    def read(self, tables: torch.Tensor) -> torch.Tensor:
        """[S, blocks * block_size, Hkv, D]: the blocks of tables [S, blocks]; codes become float32."""
        rows = self.rows[tables].flatten(1, 2)
        if self.scales is None:
            return rows
        return code_values(rows) * self.scales[tables].flatten(1, 2)[..., None]


class BlockPools:
    """Keys and values of every layer."""

    memory: Final = None  # torch writes zeros to all of it

    def __init__(self) -> None:
        self._keys: list[Pools] = []
        self._values: list[Pools] = []  # of a latent layer: a part of its keys
        self._layers: tuple[LayerSpec, ...] = ()
        self._kept: tuple[Pools, ...] = ()

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
        def pool(heads: int, dim: int) -> Pools:
            size = num_blocks, block_size, heads
            scales = torch.zeros(*size, device=device) if codes is not None else None
            kept = dtype if codes is None else stored_as(codes)
            return Pools(torch.zeros(*size, dim, dtype=kept, device=device), scales)

        self._layers = layers
        self._keys = [pool(spec.num_kv_heads, spec.key_dim) for spec in layers]
        self._values = [
            Pools(keys.rows[..., : spec.value_dim], keys.scales)
            if spec.latent
            else pool(spec.num_kv_heads, spec.value_dim)
            for spec, keys in zip(layers, self._keys, strict=True)
        ]
        self._kept = (
            *self._keys,
            *(values for spec, values in zip(layers, self._values, strict=True) if not spec.latent),
        )

    def pools(self, layer: int) -> tuple[Pools, Pools]:
        """Keys and values of a layer, for kernels that write to them."""
        return self._keys[layer], self._values[layer]

    def is_latent(self, layer: int) -> bool:
        return self._layers[layer].latent

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        sources, targets = send(
            self._keys[0].rows.device, *(np.array(ids, dtype=np.int64) for ids in zip(*pairs, strict=True))
        )
        for pools in self._kept:
            for pool in (pools.rows, pools.scales):
                if pool is not None:
                    pool[targets] = pool[sources]
