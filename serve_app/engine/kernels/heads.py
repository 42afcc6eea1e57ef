"""Linears of heads, in the form for native calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve_app.engine.kernels.checks import check
from serve_app.engine.kernels.structs import LinearStruct


@dataclass(frozen=True, slots=True)
class NativeHeads:
    """An argument of `Native.run_heads`. The structs are valid as long as the weights of the linears."""

    structs: ctypes.Array[LinearStruct]

    @classmethod
    def of(cls, linears: Sequence[LinearStruct | None]) -> NativeHeads | None:
        """Join linears without biases; None where a native call cannot take one.

        Raises ValueError if they differ in shape or product.
        """
        known = [each for each in linears if each is not None]
        if len(known) < len(linears):
            return None
        if len({(each.inputs, each.outputs, each.product) for each in known}) != 1:
            raise ValueError("the linears of heads differ")
        return cls((LinearStruct * len(known))(*known))

    def run(self, library: ctypes.CDLL, x: torch.Tensor) -> torch.Tensor:
        """[H, T, K] float32 -> [H, T, N] float32. Raises ValueError for a tensor that does not fit."""
        check(x, torch.float32)
        heads, rows, inputs = x.shape
        if (heads, inputs) != (len(self.structs), self.structs[0].inputs):
            raise ValueError("the rows do not fit the linears of heads")
        out = torch.empty(heads, rows, self.structs[0].outputs)
        library.linears(
            *(self.structs, heads, x.data_ptr(), out.data_ptr(), rows, torch.get_num_threads()),
        )
        return out
