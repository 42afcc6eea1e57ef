"""The computation between the two products of an expert: how an experts module combines gates and ups.

The form is found by trying a few numbers on the module, not by names of classes. A module with an unknown
form does this computation itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from serve_app.engine.kernels import plain

WIDTH: Final = 64  # gates of the rows that show the form
SPREAD: Final = 12.0  # of their numbers: beyond the limits that models have


@dataclass(frozen=True, slots=True)
class Gate:
    """[T, 2I], gates before ups -> [T, I]: as `plain.gate`, or with a limit as `plain.clamped_gate`."""

    gelu: bool = False
    limit: float = 0.0  # 0: none
    alpha: float = 1.0
    added: float = 0.0

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        if self.limit == 0:
            return plain.gate(gate_up, self.gelu)
        return plain.clamped_gate(gate_up, self.limit, self.alpha, self.added)


def interleaved(count: int) -> torch.Tensor:
    """The indices of `count` alternating gates and ups: first those of all gates, then those of all ups."""
    return torch.arange(count).view(-1, 2).T.flatten()


def is_experts(module: nn.Module) -> bool:
    """Whether a module has experts behind transformers' interface."""
    weight = module._parameters.get("down_proj")
    return hasattr(module, "is_transposed") and weight is not None and weight.dim() == 3


def gate_of(experts: nn.Module) -> Gate | None:
    """The form of a module with transformers' experts interface; None if the form is unknown."""
    module: Any = experts
    if not module.has_gate:
        return None
    rows = torch.linspace(-SPREAD, SPREAD, 8 * WIDTH).view(-1, 2 * WIDTH)
    rows = rows[:, torch.randperm(2 * WIDTH, generator=torch.Generator().manual_seed(0))]
    given = rows if module.is_concatenated else torch.empty_like(rows)
    if given is not rows:
        given[:, interleaved(2 * WIDTH)] = rows
    with torch.inference_mode():
        want = module._apply_gate(given)
        return next((gate for gate in _forms(module) if torch.allclose(gate(rows), want, atol=1e-5)), None)


def _forms(module: Any) -> Iterator[Gate]:
    yield Gate()
    yield Gate(gelu=True)
    limit = getattr(module, "limit", None) or getattr(module, "swiglu_limit", None)
    if not limit:
        return
    alpha = getattr(module, "alpha", None) or getattr(module, "swiglu_alpha", None) or 1.0
    for added in (0.0, 1.0):
        yield Gate(limit=float(limit), alpha=float(alpha), added=added)
