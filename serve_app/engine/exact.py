"""Functions of single numbers whose results do not depend on where the numbers lie in memory.

Torch computes SiLU and similar functions on about sixteen neighbouring numbers at a time. The numbers left
over at the end of a tensor, or of a thread's part, are computed by another method, so their last bit may
differ. Exponentials and quotients of single numbers are the same everywhere, so the functions here are built
from them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from transformers import activations

VECTOR: Final = 32  # numbers that torch computes at once, at most
Formula = Callable[[torch.Tensor], torch.Tensor]


class Exact(nn.Module):
    """An activation, computed by a formula in float32."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self._formula = formula

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # as torch calls it
        return self._formula(input.float()).to(input.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / x.neg().exp_().add_(1)


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / x.neg().exp_().add_(1)


def softplus(x: torch.Tensor) -> torch.Tensor:
    return x.abs().neg_().exp_().log1p_().add_(x.clamp(min=0))


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x / (x * -1.702).exp_().add_(1)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return (x * math.sqrt(0.5)).erf_().add_(1).mul_(x * 0.5)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = (x * x * x).mul_(0.044715).add_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(x * 0.5)


_FORMULAS: Final[dict[type[nn.Module], Formula]] = {
    nn.SiLU: silu,
    nn.Sigmoid: sigmoid,
    activations.SiLUActivation: silu,
    activations.GELUActivation: gelu,
    activations.GELUTanh: gelu_tanh,
    activations.QuickGELUActivation: quick_gelu,
}


def exact(activation: nn.Module) -> Exact | None:
    """An exact form of the same activation; None if the module is not an activation, or if torch computes it
    exactly."""
    formula = _FORMULAS.get(type(activation))
    return None if formula is None else Exact(formula)


class _Exact:
    """A module of torch as files of transformers see it, with exact functions on a CPU."""

    def __init__(self, own: ModuleType, **formulas: Formula) -> None:
        self._own = own
        for name, formula in formulas.items():
            setattr(self, name, _on_cpu(formula, getattr(own, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _on_cpu(formula: Formula, own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def function(input: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:  # as torch calls it
        if input.device.type != "cpu" or args or options:
            return own(input, *args, **options)
        return formula(input.float()).to(input.dtype)

    return function


# By the names that files import them as.
_MODULES: Final[dict[str, tuple[ModuleType, _Exact]]] = {
    "torch": (torch, _Exact(torch, sigmoid=sigmoid)),
    "F": (functional, _Exact(functional, sigmoid=sigmoid, silu=silu, gelu=gelu)),
}


def connect_exact(model: nn.Module) -> None:
    """Let the files of `model`'s classes use these functions: a row of gates may be no whole vectors."""
    for place in {sys.modules[type(part).__module__] for part in model.modules()}:
        for name, (own, exactly) in _MODULES.items():
            if place.__name__.startswith("transformers.models.") and vars(place).get(name) is own:
                vars(place)[name] = exactly
