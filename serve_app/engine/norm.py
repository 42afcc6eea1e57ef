"""The norms that fused layers apply to rows, with their weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMSNorm; LayerNorm without a bias if `centred`."""

    weight: torch.Tensor  # [N] float32
    eps: float
    centred: bool = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., N] -> [..., N], in the type of x: the formula that kernels are compared with."""
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """What a layer still adds to a residual: `scale` times the normalised `delta`."""

    delta: torch.Tensor  # [T, N]; it may change when it is added
    norm: Norm | None = None
    scale: float = 1.0
