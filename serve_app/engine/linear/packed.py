"""Linear layers with their weights packed once, at load, for the way this CPU multiplies.

Three methods: our own kernels (bfloat16 or float32 weights, float32 sums, a row's
result independent of the other rows), oneDNN's packed product where there are none,
and plain torch. Each packed weight is checked against
plain torch before its original is dropped. It knows no model structure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.kernels import native
from serve_app.engine.kernels.compact import CompactWeight
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LANES, TYPES, LinearStruct

log = logging.getLogger(__name__)

# Of the largest output: what summing in another order and rounding once may do.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


CHECKED_ROWS: Final = (1, 7, 19)  # of the batches on which a packed weight is compared


class Method(Enum):
    """Who multiplies."""

    NATIVE = "native"
    ONEDNN = "oneDNN"
    PLAIN = "plain torch"


def choose_method(dtype: torch.dtype) -> Method:
    """The fastest method that this machine has for weights of `dtype`."""
    if dtype not in TYPES:
        return Method.PLAIN
    if native() is not None:
        return Method.NATIVE
    return Method.ONEDNN if _has_onednn(dtype) else Method.PLAIN


class PackedLinear(nn.Module):
    """Takes the place of a `nn.Linear` in inference. Weights: [N, K], bias: [N].

    The weight is not a parameter any more: it cannot be trained, moved or read back.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        method: Method | None = None,
        *,
        lasting: bool = True,
    ) -> None:
        """`lasting`: it lives as long as the process, so its memory need not be given back."""
        super().__init__()
        self._lasting = lasting
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.method = choose_method(weight.dtype) if method is None else method
        self._bias = None if bias is None else bias.detach().clone()
        self._wide_bias: torch.Tensor | None = None
        self._kernels: Native | None = None
        self.wide_output = False  # forward returns float32, as logits want
        with torch.no_grad():
            self._pack(weight.detach())
            if self.method is not Method.PLAIN and not self._error(weight) <= TOLERANCE[self.dtype]:
                log.error("%s is wrong for a linear of %s; plain torch instead", self.method, weight.shape)
                self.method = Method.PLAIN
                self._pack(weight.detach())

    @classmethod
    def of(cls, *linears: nn.Linear) -> PackedLinear:
        """One layer computing several linears of the same input side by side."""
        return cls(*side_by_side(*linears))

    @property
    def num_bytes(self) -> int:
        """Of the weight as it is packed."""
        return self._data.nbytes

    @property
    def _data(self) -> torch.Tensor:
        return self._weight.data if isinstance(self._weight, CompactWeight) else self._weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] -> [..., N] of the weight's type, or float32 if `wide_output`."""
        dtype = torch.float32 if self.wide_output else self.dtype
        if x.numel() == 0:  # the head of a step without samples; not every product takes no rows
            return x.new_empty(*x.shape[:-1], self.out_features, dtype=dtype)
        return self._multiply(x, dtype)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] float32 -> [M, N] float32, without rounding between where the method allows."""
        if self._kernels is not None and self.in_features % 2 == 0:
            return self._kernels.linear(x, self._weight, self._wide_bias, self.out_features)
        return self._multiply(x, torch.float32)

    def describe(self) -> LinearStruct | None:
        """For native calls, valid as long as this module; None unless our kernel multiplies."""
        if self._kernels is None or self.in_features % 2:
            return None
        bias = None if self._wide_bias is None else self._wide_bias.data_ptr()
        product = self._kernels.products[self.dtype][0]
        return LinearStruct(
            weight=self._data.data_ptr(),
            bias=bias,
            outputs=self.out_features,
            inputs=self.in_features,
            product=product,
            compact=isinstance(self._weight, CompactWeight),
        )

    def _multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self._kernels is not None:
            rows = self._kernels.widen(x.reshape(-1, self.in_features))
            if self.in_features % 2:
                rows = functional.pad(rows, (0, 1))
            out = self._kernels.linear(rows, self._weight, self._wide_bias, self.out_features, dtype)
            return out.view(*x.shape[:-1], self.out_features)
        if self.method is Method.ONEDNN:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x.to(self.dtype), self._data, self._bias, "none", [], ""
            )
            return product.to(dtype)
        return functional.linear(x.to(self.dtype), self._data, self._bias).to(dtype)

    def _pack(self, weight: torch.Tensor) -> None:
        self._kernels = kernels = native() if self.method is Method.NATIVE else None
        self._weight: torch.Tensor | CompactWeight
        if kernels is not None:
            weight = weight.contiguous()
            compact = None
            if kernels.compact and self.dtype == torch.bfloat16:
                compact = kernels.pack_compact(weight, lasting=self._lasting)
            self._weight = kernels.pack_weight(weight, lasting=self._lasting) if compact is None else compact
            if self._bias is not None:
                self._wide_bias = functional.pad(self._bias.float(), (0, -self.out_features % LANES))
        elif self.method is Method.ONEDNN and _has_onednn(self.dtype):
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)
        else:
            self.method = Method.PLAIN
            self._weight = weight

    def _error(self, weight: torch.Tensor) -> float:
        """Largest difference from plain torch, relative to its largest output, over a few odd batches.

        Of a wide layer only both ends are compared: a copy of its weight in float32 would not always fit.
        """
        n = self.out_features
        ends = torch.arange(n) if n <= 256 else torch.cat([torch.arange(128), torch.arange(n - 128, n)])
        weight = weight[ends].float()
        bias = None if self._bias is None else self._bias[ends].float()
        x = _odd_rows(self.in_features, self.dtype)
        want = functional.linear(x.float(), weight, bias)
        worst = 0.0
        for rows in CHECKED_ROWS:
            difference = (self._multiply(x[:rows], self.dtype)[:, ends].float() - want[:rows]).abs().max()
            worst = max(worst, float(difference / want[:rows].abs().max().clamp_min(1e-6)))
        return worst


@lru_cache(maxsize=8)
def _odd_rows(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of many values, on which products are compared; the same for all layers of a width."""
    rows = max(CHECKED_ROWS)
    return torch.linspace(-1, 1, rows * width).mul(99).cos().view(rows, -1).to(dtype)


Pack: TypeAlias = Callable[..., PackedLinear]  # of linears with the same input, side by side


def side_by_side(*linears: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and the bias of one linear that computes several of the same input."""
    biases = tuple(
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        for linear in linears
    )
    bias = torch.cat(biases) if any(linear.bias is not None for linear in linears) else None
    if len(linears) == 1:
        return linears[0].weight, bias
    return torch.cat(tuple(linear.weight for linear in linears)), bias


def pack_linears(module: nn.Module, linears: Set[nn.Module], pack: Pack = PackedLinear.of) -> int:
    """Swap those of `linears` that lie below `module` for what `pack` makes, in place; returns how many.

    A weight that an embedding shares stays with the embedding; the linear gets its own packed copy.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear) or child not in linears:
                continue
            if child.weight.dtype in TYPES and child.weight.device.type == "cpu":
                setattr(parent, name, pack(child))
                count += 1
    return count


def _has_onednn(dtype: torch.dtype) -> bool:
    """oneDNN packs bfloat16 only on CPUs with AVX512 or AVX-NE-CONVERT, and raises an error on others."""
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not torch._C._has_mkldnn or not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
