"""How a block of transformers chooses the experts of a row: learnt from choices, not from names of classes.

A block is run on random rows while its experts only record what they get. A form that gives the same experts
and weights for the outputs of its router is the block's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import torch
from torch import nn

from serve_app.engine.kernels.plain import Routing, route

ROWS: Final = 64  # that show how a block chooses
TOLERANCE: Final = 1e-5  # of a weight, relative


@dataclass(frozen=True, slots=True)
class Choices:
    """What a block chose for some rows."""

    outputs: torch.Tensor  # [T, E] of its router
    chosen: torch.Tensor  # [T, K]
    weights: torch.Tensor  # [T, K]

    def routing(self, block: nn.Module, config: Any) -> Routing | None:
        """The form of the choices; None if they have another form. `config`: of the model's text."""
        own = self._by_expert(self.chosen, self.weights)
        for form in _forms(block, config, self.outputs.shape[1], self.chosen.shape[1]):
            found = self._by_expert(*route(self.outputs, form))
            scale = float(own.sum() / found.sum())
            if torch.allclose(found * scale, own, rtol=TOLERANCE, atol=0):
                return replace(form, scale=float(f"{scale:.5g}"))  # without what rounding added
        return None

    def _by_expert(self, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[T, E]: weights in the order of experts, which no order of the choices changes."""
        return torch.zeros_like(self.outputs).scatter(1, chosen, weights)


def _forms(block: nn.Module, config: Any, count: int, each: int) -> Iterator[Routing]:
    """The forms that a router of `count` experts may have, those with more parts first."""
    corrections = [
        part.detach().float().flatten()
        for part in (*block.buffers(), *block.parameters())
        if part.numel() == count
    ]
    groups, kept = (getattr(config, name, None) or 1 for name in ("n_group", "topk_group"))
    best = range(min(2, count // groups), 0, -1) if groups > kept else ()
    for correction, sigmoid, normalised in product((*corrections, None), (False, True), (True, False)):
        form = Routing(each=each, sigmoid=sigmoid, normalised=normalised, correction=correction)
        for most in best:
            yield replace(form, groups=groups, kept=kept, best=most)
        yield form
