"""Weights in their own type that torch multiplies by: as they are, or packed by oneDNN."""

from __future__ import annotations

import torch
from torch.nn import functional

from serve_app.engine.kernels.structs import LinearStruct


class TorchWeight:
    """A weight that torch multiplies by, on any device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True) -> None:
        """As `Load`. Torch manages the memory, so `lasting` makes no difference."""
        self._weight = weight.detach().contiguous()
        self._bias = None if bias is None else bias.detach()

    @property
    def num_bytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return functional.linear(x.to(self._weight.dtype), self._weight, self._bias).to(dtype)

    def describe(self) -> LinearStruct | None:
        return None


class OnednnWeight(TorchWeight):
    """A weight that oneDNN has packed, on a CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True) -> None:
        super().__init__(weight, None if bias is None else bias.clone())
        self._dtype = weight.dtype
        self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, 32)

    @staticmethod
    def supports(dtype: torch.dtype) -> bool:
        """oneDNN packs bfloat16 only on CPUs with AVX512 or AVX-NE-CONVERT, and raises an error on others."""
        names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
        if not torch._C._has_mkldnn or not all(hasattr(torch.ops.mkldnn, name) for name in names):
            return False
        return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return product.to(dtype)
