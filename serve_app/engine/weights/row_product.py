"""Weights in their own type on a GPU, where the product of a single row reads the matrix at full speed."""

from __future__ import annotations

from typing import Final

import torch
import triton

from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.weights import triton_kernels as kernels
from serve_app.engine.weights.torch_weight import TorchWeight

AT_ONCE: Final = 1024  # numbers of a row of weights
WEIGHTS: Final = 2048  # of a program at a time: a thread has sixteen


_MULTIPLY_ROW = Launcher(kernels.multiply_row)


class RowWeight(TorchWeight):
    """A weight that cuBLAS multiplies by several rows, and our own kernel by a single row."""

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if len(x) == 1 and x.dtype == dtype == self._weight.dtype:
            return row_product(x.contiguous(), self._weight, self._bias)
        return super().multiply(x, dtype)


def row_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [1, K] times weight [N, K] plus bias [N] -> [1, N]; contiguous tensors of one type."""
    outputs, inputs = weight.shape
    if x.shape != (1, inputs):
        raise ValueError(f"a matrix of {tuple(weight.shape)} got {tuple(x.shape)}")
    out = x.new_empty(1, outputs)
    step = min(AT_ONCE, triton.next_power_of_2(inputs))
    rows = WEIGHTS // step
    _MULTIPLY_ROW(
        (triton.cdiv(outputs, rows),),
        *(x, weight, weight if bias is None else bias, out, outputs),
        K=inputs,
        ROWS=rows,
        STEP=step,
        WHOLE=outputs % rows == 0 and inputs % step == 0,
        BIAS=bias is not None,
        num_warps=4,
        **early_start(x.device),
    )
    return out
