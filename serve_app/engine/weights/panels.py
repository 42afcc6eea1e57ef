"""Weights of float32 or bfloat16 in panels of sixteen outputs, for the native product on a CPU.

bfloat16 weights are stored in twelve bits if the processor can decode them as fast as it reads memory (see
kernels/compact.py).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from serve_app.engine.kernels.compact import CompactWeight
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LANES, LinearStruct


class PanelWeight:
    """A packed weight. Sums are float32, and a row's result does not depend on the other rows."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Native, *, lasting: bool = True
    ) -> None:
        """As `Load`."""
        self._kernels, self._dtype = kernels, weight.dtype
        self._outputs, self._inputs = weight.shape
        weight = weight.detach().contiguous()
        compact = None
        if kernels.compact and weight.dtype == torch.bfloat16:
            compact = kernels.pack_compact(weight, lasting=lasting)
        self._packed = kernels.pack_weight(weight, lasting=lasting) if compact is None else compact
        self._bias = padded_bias(bias)

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rows = self._kernels.widen(x)
        if self._inputs % 2:
            rows = functional.pad(rows, (0, 1))
        return self._kernels.linear(rows, self._packed, self._bias, self._outputs, dtype)

    def describe(self) -> LinearStruct | None:
        if self._inputs % 2:
            return None
        return LinearStruct(
            weight=self._data.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            outputs=self._outputs,
            inputs=self._inputs,
            product=self._kernels.products[self._dtype][0],
            compact=isinstance(self._packed, CompactWeight),
        )

    @property
    def _data(self) -> torch.Tensor:
        return self._packed.data if isinstance(self._packed, CompactWeight) else self._packed


def padded_bias(bias: torch.Tensor | None) -> torch.Tensor | None:
    """bias [N] in the form that native products need: float32, padded to whole panels."""
    return None if bias is None else functional.pad(bias.detach().float(), (0, -len(bias) % LANES))
