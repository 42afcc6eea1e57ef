"""The shared expert of a mixture: a gated MLP that every row takes besides the experts of its own.

An MLP is one by its structure, not by the name of its class.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from transformers.activations import GELUTanh, SiLUActivation

from serve_app.engine.experts.gate import is_experts
from serve_app.engine.experts.packed import PLACE
from serve_app.engine.kernels.experts import NativeExperts
from serve_app.engine.kernels.native import Native
from serve_app.engine.weights.packed_linear import Pack

LINEARS: Final = frozenset({"gate_proj", "up_proj", "down_proj"})


class SharedExpert(nn.Module):
    """Computes the same as an MLP of transformers, on the native functions. Its inner numbers are float32."""

    def __init__(self, mlp: nn.Module, pack: Pack, kernels: Native) -> None:
        """Packs the weights of `mlp`, which itself stays as it is."""
        super().__init__()
        own: Any = mlp
        self._kernels, self._gelu = kernels, isinstance(own.act_fn, GELUTanh)
        self.gate_up_proj = pack(own.gate_proj, own.up_proj)
        self.down_proj = pack(own.down_proj)
        self.gate_up_proj.wide_output = self.down_proj.wide_output = True
        self.native = NativeExperts.of(
            [self.gate_up_proj.describe()],
            [self.down_proj.describe()],
            gelu=self._gelu,
            limit=0.0,
            alpha=1.0,
            added=0.0,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., N] -> [..., N] of the type of x, with the products of the step's adapters."""
        rows = self._kernels.widen(x.reshape(-1, x.shape[-1]))
        made: torch.Tensor = self.down_proj(self._kernels.gated(self.gate_up_proj(rows), self._gelu))
        return made.view(x.shape).to(x.dtype)


def shared_experts(block: nn.Module) -> frozenset[nn.Module]:
    """The children of `block` that are shared experts; none if no child has experts of which rows choose."""
    children = list(block.children())
    mixed = any(is_experts(child) or hasattr(child, PLACE) for child in children)
    return frozenset(filter(_is_shared, children)) if mixed else frozenset()


def _is_shared(mlp: nn.Module) -> bool:
    linears = {name for name, child in mlp.named_children() if type(child) is nn.Linear}
    parts = {name.rpartition(".")[0] for name, _ in mlp.named_parameters()}
    if mlp._forward_hooks or not linears == parts == LINEARS:  # ranks add up what a hooked one makes
        return False
    return isinstance(getattr(mlp, "act_fn", None), SiLUActivation | nn.SiLU | GELUTanh)
