"""Weights that are converted to int8 or int4 codes at the start.

On a CPU, the native functions multiply by these codes, or plain torch does; its results are the same, bit for
bit. A GPU has codes of its own (`gpu_codes.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.grouped import Codes
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight, product
from serve_app.engine.kernels.structs import LinearStruct
from serve_app.engine.weights.format import Weight, WeightFormat
from serve_app.engine.weights.gpu_formats import load_on_gpu
from serve_app.engine.weights.panels import padded_bias


class CodesWeight:
    """A weight as codes with scales, in plain torch."""

    def __init__(self, codes: QuantizedWeight, bias: torch.Tensor | None) -> None:
        self._codes, self._bias = codes, None if bias is None else bias.detach().float()

    @property
    def num_bytes(self) -> int:
        return self._codes.num_bytes

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return product(x.float().contiguous(), self._codes, self._bias).to(dtype)

    def describe(self) -> LinearStruct | None:
        return None


class PackedCodes:
    """A weight as codes with scales, packed for the native product."""

    def __init__(
        self,
        codes: Codes,
        bias: torch.Tensor | None,
        kernels: Native,
        *,
        lasting: bool,
    ) -> None:
        self._kernels, self._product = kernels, codes.product
        self._outputs, self._inputs = codes.codes.shape
        self._packed = kernels.pack_quantized(codes, lasting=lasting)
        self._bias = padded_bias(bias)

    @property
    def num_bytes(self) -> int:
        return self._packed.nbytes

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._kernels.linear(
            *(x.float().contiguous(), self._packed, self._bias, self._outputs, dtype), product=self._product
        )

    def describe(self) -> LinearStruct | None:
        return LinearStruct(
            weight=self._packed.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            outputs=self._outputs,
            inputs=self._inputs,
            product=self._product,
            compact=False,
        )


def load_codes(
    weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True, kind: Quantization
) -> Weight:
    """As `Load`."""
    codes, kernels = QuantizedWeight.of(weight.detach(), kind), native()
    return CodesWeight(codes, bias) if kernels is None else PackedCodes(codes, bias, kernels, lasting=lasting)


INT8: Final = WeightFormat(
    "int8",
    {"cpu": partial(load_codes, kind=Quantization.INT8), "triton": partial(load_on_gpu, name="int8")},
    error=0.2,
)
INT4: Final = WeightFormat(
    "int4",
    {"cpu": partial(load_codes, kind=Quantization.INT4), "triton": partial(load_on_gpu, name="int4")},
    error=0.6,
)
