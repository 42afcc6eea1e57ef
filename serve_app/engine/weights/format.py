"""The interface of a weight format, which connects the weights of linear layers to the products of a device.

A format loads weights, multiplies by them on every device that it supports, and describes them to native
code. A format's name, which is part of a model's fingerprint, and its size are in `config/quantization.py`:
both are also needed without torch. Formats do not depend on the model's structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.kernels.structs import LinearStruct


class Weight(Protocol):
    """The weight [N, K] and the bias [N] of a linear layer, as a format keeps them on a device."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the weight, without the bias."""
        ...

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """x [M, K] of any float type -> x W^T + b: [M, N] of `dtype`. A row depends on no other row."""
        ...

    def describe(self) -> LinearStruct | None:
        """The argument for native calls over whole layers, valid as long as the weight lives; None if such
        calls cannot use the weight."""
        ...


class Load(Protocol):
    """Makes a weight for one device."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True) -> Weight:
        """Load weight [N, K] and bias [N], which are in the checkpoint's type, on their device.

        `lasting`: the result is kept as long as the process runs, so its memory need not be freed.
        """
        ...


class LoadCodes(Protocol):
    """Makes a weight for one device from the codes of a quantised checkpoint."""

    def __call__(
        self, codes: QuantisedMatrix, bias: torch.Tensor | None, dtype: torch.dtype, *, lasting: bool = True
    ) -> Weight | None:
        """Load codes [N, K], which are on the device and have been checked, and bias [N], without rounding
        weights again. None: the device has no product for such codes, and wants plain numbers.

        `dtype`: the type that the plain numbers would have. `lasting`: as for `Load`.
        """
        ...


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One way to keep the weights of linear layers."""

    name: str  # as the setting `quantization` has it
    loads: Mapping[str, Load]  # by the kind of a device
    error: float = 0.0  # of a model's outputs, at most, by the rounding of weights: relative, by norm
    # How weights that are codes already are loaded, by the kind of a device; on others by their numbers.
    codes: Mapping[str, LoadCodes] = field(default_factory=dict)
    codes_error: float = 0.0  # as `error`, by the rounding of activations
