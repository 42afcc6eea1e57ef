"""An MLP with experts in a fused layer: a router, experts and what they share, as transformers computes them.

A device lets its own functions compute the parts that are heavy.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Mixture(nn.Module):
    """Calls a block of transformers, whose linears and experts a device may have replaced."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] -> [T, N]."""
        out: Any = self.block(x[None])  # some blocks return the scores of experts too
        rows: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return rows.view(x.shape)


def with_its_weights(block: ModuleT) -> ModuleT:
    """A copy of `block` and its settings, with the same weights: changes to it leave `block` as it is."""
    weights = {id(each): each for each in (*block.parameters(), *block.buffers())}
    return copy.deepcopy(block, weights)
