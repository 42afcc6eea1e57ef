"""Linear layers whose weights are quantised at load: a packed linear with fewer bytes.

The native functions multiply, or plain torch with the same results, bit for bit. An adapter adds to the
outputs as it does to those of any packed linear.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from serve_app.config.quantization import SENSITIVE
from serve_app.engine.kernels import native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight, product
from serve_app.engine.kernels.structs import LANES, LinearStruct, Product
from serve_app.engine.linear.packed import Method, Pack, PackedLinear, side_by_side

log = logging.getLogger(__name__)

PRODUCTS: Final = {Quantization.INT8: Product.INT8, Quantization.INT4: Product.INT4}
CHECKED: Final = 128  # outputs at both ends of a layer whose native product is compared with plain torch


class QuantizedLinear(PackedLinear):
    """Takes the place of a `nn.Linear` in inference. Weights: [N, K], bias: [N]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kind: Quantization) -> None:
        self._kind = kind
        super().__init__(weight, bias, Method.PLAIN if native() is None else Method.NATIVE)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] float32 -> [M, N] float32."""
        return self._multiply(x, torch.float32)

    def describe(self) -> LinearStruct | None:
        """For native calls, valid as long as this module; None unless our kernel multiplies."""
        if self._kernels is None:
            return None
        return LinearStruct(
            weight=self._data.data_ptr(),
            bias=None if self._wide_bias is None else self._wide_bias.data_ptr(),
            outputs=self.out_features,
            inputs=self.in_features,
            product=PRODUCTS[self._kind],
            compact=False,
        )

    @property
    def num_bytes(self) -> int:
        """Of the weight as it is packed."""
        if self._kernels is None:
            return self._codes.num_bytes
        return self._data.nbytes

    def _multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).float().contiguous()
        if self._kernels is None:
            out = product(rows, self._codes, self._wide_bias).to(dtype)
        else:
            out = self._kernels.linear(
                *(rows, self._weight, self._wide_bias, self.out_features, dtype),
                product=PRODUCTS[self._kind],
            )
        return out.view(*x.shape[:-1], self.out_features)

    def _pack(self, weight: torch.Tensor) -> None:
        self._kernels = native() if self.method is Method.NATIVE else None
        codes = QuantizedWeight.of(weight, self._kind)
        if self._bias is not None:
            self._wide_bias = self._bias.float()
        if self._kernels is None:
            self._codes = codes
            return
        self._weight = self._kernels.pack_quantized(codes, lasting=self._lasting)
        if self._wide_bias is not None:
            self._wide_bias = functional.pad(self._wide_bias, (0, -self.out_features % LANES))
        self._ends = codes.rows(_places(self.out_features))

    def _error(self, weight: torch.Tensor) -> float:
        """0 if the native product equals that of plain torch at both ends of the layer, else 1."""
        ends, n = self._ends, self.out_features
        del self._ends
        places = _places(n)
        bias = None if self._wide_bias is None else self._wide_bias[places]
        for rows in (1, 7, 19):
            x = torch.linspace(-1, 1, rows * self.in_features).mul(99).cos().view(rows, -1)
            x[-1, self.in_features // 2] *= 999  # has a code of sixteen bits
            if not torch.equal(self.project(x)[:, places], product(x, ends, bias)):
                return 1.0
        return 0.0


def packer(kind: Quantization | None, sensitive: Set[nn.Module] = frozenset()) -> Pack:
    """What makes one layer of linears: quantised to `kind`, or in their own type.

    `sensitive`: linears that become int8 in any case.
    """
    if kind is None:
        return PackedLinear.of

    def pack(*linears: nn.Linear) -> PackedLinear:
        own = Quantization.INT8 if linears[0] in sensitive else kind
        return QuantizedLinear(*side_by_side(*linears), own)

    return pack


def sensitive_linears(model: PreTrainedModel) -> set[nn.Module]:
    """Those to which answers are most sensitive: of queries, keys and values, and the head."""
    found: set[nn.Module] = {each for name, each in model.named_modules() if name.endswith(SENSITIVE)}
    return found | {model.get_output_embeddings()}


def _places(n: int) -> torch.Tensor:
    if n <= 2 * CHECKED:
        return torch.arange(n)
    return torch.cat([torch.arange(CHECKED), torch.arange(n - CHECKED, n)])
