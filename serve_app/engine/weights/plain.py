"""Weights in their own type, with the fastest product of a device: the format of unquantised models."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.weights.format import Weight, WeightFormat
from serve_app.engine.weights.gpu_own_codes import load_codes_on_gpu
from serve_app.engine.weights.own_codes import load_codes_on_cpu
from serve_app.engine.weights.panels import PanelWeight
from serve_app.engine.weights.torch_weight import OnednnWeight, TorchWeight


def load_on_cpu(weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True) -> Weight:
    """Implements `Load`: with our own kernels, else with oneDNN, else in plain torch."""
    if weight.dtype in TYPES and (kernels := native()) is not None:
        return PanelWeight(weight, bias, kernels, lasting=lasting)
    kind = OnednnWeight if weight.dtype in TYPES and OnednnWeight.supports(weight.dtype) else TorchWeight
    return kind(weight, bias)


def load_on_gpu(weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True) -> Weight:
    """Implements `Load`: with torch's cuBLAS, and for a single row with a kernel of our own."""
    from serve_app.engine.weights.row_product import RowWeight

    return RowWeight(weight, bias)


PLAIN: Final = WeightFormat(
    "none",
    {"cpu": load_on_cpu, "triton": load_on_gpu, "torch": TorchWeight},
    codes={"cpu": load_codes_on_cpu, "triton": load_codes_on_gpu},
    codes_error=0.2,
)
