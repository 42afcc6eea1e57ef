"""Muon: momentum whose update of a matrix is made orthogonal, for the hidden matrices of a small model.

It needs about half the tokens AdamW does. Embeddings and norms are not its business.
Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

_QUINTIC: Final = (3.4445, -4.7750, 2.0315)  # drives singular values towards 1
_ITERATIONS: Final = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; `lr` is about the change of a matrix in spectral norm."""

    def __init__(self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                velocity = self.state[matrix].setdefault("velocity", torch.zeros_like(matrix))
                velocity.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(velocity, group["momentum"]))
                rows, columns = matrix.shape
                matrix.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About U V^T of a matrix [m, n] = U S V^T, by Newton-Schulz iterations."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x.T if tall else x
    return result
