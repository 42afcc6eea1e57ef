"""Which linears of a model can be packed: the model may use their weights only by calling them.

A packed linear no longer has a `weight`. Some models do not call a linear, but multiply by its weight in
another type, or they read the weight's type. One watched forward shows which linears are used in such a way.
Linears whose names differ only in numbers (layers, experts) count as one, since a single forward does not use
every expert. Does not depend on the model's structure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn import functional

# Settings with the number of experts: a linear with as many outputs is a router.
COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


def packable_linears(model: nn.Module, run: Callable[[], object]) -> frozenset[nn.Module]:
    """The plain linears whose weights `model` uses only by calling them; `run` has to make one forward."""
    called: set[nn.Module] = set()
    read: set[nn.Module] = set()

    class Watched(nn.Linear):
        """A linear that records calls, and every read of its parameters by other code."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:  # as torch calls it
            called.add(self)
            weight = cast(torch.Tensor, self._parameters["weight"])
            # In the weight's type, as a packed linear: fused layers around it compute in float32.
            return functional.linear(input.to(weight.dtype), weight, self._parameters["bias"])

        def __getattr__(self, name: str) -> Any:
            if name in ("weight", "bias"):
                read.add(self)
            return super().__getattr__(name)

    linears = {name: part for name, part in model.named_modules() if type(part) is nn.Linear}
    for linear in linears.values():
        linear.__class__ = Watched
    try:
        run()
    finally:
        for linear in linears.values():
            linear.__class__ = nn.Linear
    kinds_called = {_kind(name) for name, linear in linears.items() if linear in called}
    kinds_read = {_kind(name) for name, linear in linears.items() if linear in read}
    packable = kinds_called - kinds_read
    return frozenset(linear for name, linear in linears.items() if _kind(name) in packable)


def router_sizes(config: Any) -> frozenset[int]:
    """The numbers of outputs that only routers have, by the settings of a model's text.

    A router is never quantised.
    """
    found = (getattr(config, name, None) for name in COUNTS)
    return frozenset({1, *(each for each in found if each is not None)})


def _kind(name: str) -> str:
    """`model.layers.3.mlp.experts.7.w1` -> `model.layers.*.mlp.experts.*.w1`."""
    return _NUMBER.sub("*", name)
