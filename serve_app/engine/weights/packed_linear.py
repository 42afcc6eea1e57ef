"""A linear layer over a weight of any format. It does not depend on the model's structure."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from serve_app.codes.tensor import CodedTensor
from serve_app.engine.kernels.structs import TYPES, LinearStruct
from serve_app.engine.weights.format import Load
from serve_app.engine.weights.plain import load_on_cpu


class PackedLinear(nn.Module):
    """Takes the place of a `nn.Linear` in inference.

    The weight is no longer a parameter: it cannot be trained, moved or read back.
    """

    def __init__(
        self,
        weight: torch.Tensor,  # [N, K]
        bias: torch.Tensor | None,  # [N]
        load: Load = load_on_cpu,
        *,
        lasting: bool = True,
    ) -> None:
        """`lasting`: as for `Load`."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.wide_output = False  # forward returns float32, as logits want
        self.apart = False  # no two numbers of what forward returns are neighbours, see `apart`
        with torch.no_grad():
            self.weight_kept = load(weight, bias, lasting=lasting)

    @classmethod
    def of(
        cls, *linears: nn.Linear, rows: torch.Tensor | None = None, load: Load = load_on_cpu
    ) -> PackedLinear:
        """One layer that combines several linears with the same input, as `side_by_side` does."""
        weight, bias = side_by_side(*linears, rows=rows)
        return cls(weight.numbers() if isinstance(weight, CodedTensor) else weight, bias, load)

    def twin(self) -> PackedLinear:
        """Another layer over the same packed weight."""
        made = PackedLinear.__new__(PackedLinear)
        nn.Module.__init__(made)
        for name in ("out_features", "in_features", "dtype", "wide_output", "apart", "weight_kept"):
            setattr(made, name, getattr(self, name))
        return made

    @property
    def num_bytes(self) -> int:
        """The bytes of the packed weight."""
        return self.weight_kept.num_bytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] -> [..., N], in the weight's original type, or float32 if `wide_output`."""
        dtype = torch.float32 if self.wide_output else self.dtype
        if x.numel() == 0:  # the head of a step without samples; not every product takes no rows
            return x.new_empty(*x.shape[:-1], self.out_features, dtype=dtype)
        out = self.weight_kept.multiply(x.reshape(-1, self.in_features), dtype)
        out = out.view(*x.shape[:-1], self.out_features)
        return apart(out) if self.apart else out

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N] of the same type; some formats multiply float32 numbers without rounding them."""
        return self.weight_kept.multiply(x, x.dtype)

    def describe(self) -> LinearStruct | None:
        """The argument for native calls, valid as long as this module; None if another kernel multiplies."""
        return self.weight_kept.describe()


class Pack(Protocol):
    """Combines linears with the same input into one layer."""

    def __call__(self, *linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        """As `side_by_side`."""
        ...


def side_by_side(
    *linears: nn.Linear, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and the bias of one linear that combines several linears with the same input.

    The weight is a CodedTensor if one of theirs is.

    `rows`: the order of the outputs; None: unchanged.
    """
    biases = tuple(
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        for linear in linears
    )
    bias = torch.cat(biases) if any(linear.bias is not None for linear in linears) else None
    weight = linears[0].weight if len(linears) == 1 else torch.cat(tuple(each.weight for each in linears))
    if rows is None:
        return weight, bias
    return weight[rows], None if bias is None else bias[rows]


def apart(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, spread so that no two are neighbours in memory.

    Torch computes sigmoid and similar functions on about sixteen neighbours at a time, and by another method
    on the numbers left over. The last bit of the two methods may differ, so a router's result for a row would
    depend on the rows beside it. Numbers that are not neighbours are computed one by one.
    """
    return x.new_empty(*x.shape, 2)[..., 0].copy_(x)


def as_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear with weight [N, K] and bias [N], whose memory it shares."""
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def can_be_packed(weight: torch.Tensor) -> bool:
    """Whether such a weight can be packed: it is of one of these types, and on a CPU or without memory."""
    return weight.dtype in TYPES and weight.device.type in ("cpu", "meta")
