"""Attention in only some of a model's layers: the cache has no room for the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.block_memory import BlockMemory
from serve_app.engine.forward_context import ForwardContext


class Numbered:
    """An `AttentionBackend` over one that has only the attention layers: it translates the model's layer
    numbers."""

    def __init__(self, backend: AttentionBackend, layers: Iterable[int]) -> None:
        """`layers`: the numbers of the layers that attend, in order."""
        self.backend = backend
        self._places = {layer: place for place, layer in enumerate(layers)}

    @property
    def memory(self) -> BlockMemory | None:
        return self.backend.memory

    def allocate(self, layers: tuple[LayerSpec, ...], *sizes: Any, codes: torch.dtype | None = None) -> None:
        self.backend.allocate(layers, *sizes, codes=codes)

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: ForwardContext,
        **options: Any,
    ) -> torch.Tensor:
        return self.backend.forward(self.place_of(layer), query, key, value, context, **options)

    def place_of(self, layer: int) -> int:
        """The number of a layer among those that attend."""
        return self._places[layer]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        self.backend.copy_blocks(pairs)
