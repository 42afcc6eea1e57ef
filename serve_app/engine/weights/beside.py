"""Weights of several formats, side by side in one linear."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serve_app.engine.weights.format import Weight


class WeightsBeside:
    """The outputs of several weights with the same inputs, one after the other."""

    def __init__(
        self, weights: Sequence[Weight], order: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:
        """`order`: of the outputs [N]; None: unchanged. `bias`: in that order."""
        self._weights, self._order = tuple(weights), order
        self._bias = None if bias is None else bias.detach()

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self._weights)

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out = torch.cat([each.multiply(x, dtype) for each in self._weights], dim=1)
        if self._order is not None:
            out = out[:, self._order.to(out.device)]
        return out if self._bias is None else out + self._bias.to(out.dtype)

    def describe(self) -> None:
        """Native calls take one weight at a time."""
        return
