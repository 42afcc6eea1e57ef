"""Linears of heads: each head of the inputs is multiplied by a packed weight of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.heads import NativeHeads
from serve_app.engine.weights.packed_linear import PackedLinear


class HeadLinears:
    """Packed linears of one shape, one for each head."""

    def __init__(self, linears: Sequence[PackedLinear]) -> None:
        self._linears = tuple(linears)
        described = [each.describe() for each in self._linears]
        self._native = None if native() is None else NativeHeads.of(described)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[H, T, K] of any float type -> [H, T, N] float32. A row depends on no other row."""
        kernels = native()
        if self._native is not None and kernels is not None:
            return kernels.run_heads(self._native, x)
        rows = x.float()
        return torch.stack([each.project(head) for each, head in zip(self._linears, rows, strict=True)])
