"""Weights that are converted to codes at the start, on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from serve_app.engine.weights.format import Weight, WeightFormat
from serve_app.engine.weights.gpu_codes import CODES


def load_on_gpu(
    weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True, name: str
) -> Weight:
    """As `Load`, in the format `name` of `quantization`."""
    from serve_app.engine.weights.codes_product import CodesProduct

    return CodesProduct(CODES[name](weight.detach()), bias, weight.dtype)


FP8: Final = WeightFormat("fp8", {"triton": partial(load_on_gpu, name="fp8")}, error=0.3)
