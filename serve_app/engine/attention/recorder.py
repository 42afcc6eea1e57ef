"""An attention backend that has no cache, and records how a model calls attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.forward_context import ForwardContext


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of attention."""

    layer: int
    heads: int
    spec: LayerSpec
    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class Recorder:
    """Records its calls, in order, and returns zeros."""

    memory: Final = None

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self._indices: dict[int, int] = {}  # layer -> the size of its index keys

    def allocate(self, *_: Any, **more: Any) -> None:
        raise NotImplementedError("a recorder holds no cache")

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        raise NotImplementedError("a recorder holds no cache")

    def index(self, layer: int, keys: torch.Tensor, context: ForwardContext, sequence: int) -> torch.Tensor:
        self._indices[layer] = keys.shape[-1]
        return keys

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
        index = self._indices.get(layer, 0)
        spec = LayerSpec(key.shape[1], key.shape[2], value.shape[2], latent=latent, index_dim=index)
        self.calls.append(RecordedCall(layer, query.shape[1], spec, scale, window, softcap, sinks))
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
