"""An MLP with experts whose router is native too: one call computes it, or a part of the call for all layers.

Whether a block chooses its experts in a way that the native router knows is found by trying a few rows, not
by names of classes. Any other block stays transformers' own, around packed weights.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from serve_app.engine.experts.packed import PLACE, PackedExperts
from serve_app.engine.kernels.experts import NativeExperts, NativeMixture
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LinearStruct
from serve_app.engine.weights.stand_ins import LinearWeight

ROWS: Final = 3  # that show how a block chooses
TOLERANCE: Final = 1e-5  # of what the block makes of them, relative and by norm


class NativeBlock(nn.Module):
    """Computes the same as a block of transformers with packed weights."""

    def __init__(self, block: nn.Module, native: NativeMixture, kernels: Native) -> None:
        """`native`: over the weights of `block`."""
        super().__init__()
        self._block, self.native, self._kernels = block, native, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, T, N] -> [1, T, N], float32."""
        return self._kernels.run_mixture(self.native, x[0])[None]

    @classmethod
    def of(cls, block: nn.Module, config: Any, kernels: Native) -> NativeBlock | None:
        """The native form of `block`, a copy with packed weights. `config`: of the model's text.

        None if the block chooses its experts in another way, or if it has more than experts and a router.
        """
        each: int | None = getattr(config, "num_experts_per_tok", None)
        router, experts = _router_of(block), _experts_of(block)
        if each is None or router is None or experts is None:
            return None
        if (router.inputs, router.outputs) != (experts.features[0], experts.struct.count):
            return None
        x = torch.randn(ROWS, router.inputs, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            out: Any = block(x[None])
            want = (out[0] if isinstance(out, tuple) else out).view(x.shape)
            for normalised in (True, False):
                native = NativeMixture.of(router, experts, each, normalised=normalised)
                got = kernels.run_mixture(native, x)
                if float((got - want).norm()) <= TOLERANCE * float(want.norm()):
                    return cls(block, native, kernels)
        return None


def _router_of(block: nn.Module) -> LinearStruct | None:
    """The only weight that the block's own code multiplies by, as native calls take it."""
    found = [
        each for part in block.modules() for each in vars(part).values() if isinstance(each, LinearWeight)
    ]
    return found[0].linear.describe() if len(found) == 1 else None


def _experts_of(block: nn.Module) -> NativeExperts | None:
    found: list[PackedExperts] = [getattr(part, PLACE) for part in block.modules() if hasattr(part, PLACE)]
    return found[0].native if len(found) == 1 else None
