"""What lies between the projections of a layer with a gated delta rule, as a typed native call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from serve_app.engine.kernels.spans import SpanFunction, fits
from serve_app.engine.kernels.structs import LANES, DeltaStruct


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The weights of one layer, all float32."""

    factors: torch.Tensor  # [W, C] of the convolution over queries, keys and values: first the oldest input's
    rates: torch.Tensor  # [H]: what the logarithm of a decay is for a time step of 1
    biases: torch.Tensor  # [H] of time steps
    norm: torch.Tensor  # [V]
    eps: float
    groups: int
    keys: int

    @property
    def heads(self) -> int:
        return len(self.rates)

    @property
    def values(self) -> int:
        return len(self.norm)

    @property
    def fit(self) -> bool:
        """Whether the native function takes such heads."""
        return self.keys % LANES == 0 and self.values % LANES == 0 and self.heads % self.groups == 0


@dataclass(frozen=True, slots=True)
class DeltaRule(SpanFunction):
    """Convolution, norms of heads, recurrence, and the norm of outputs with their gates. All are float32."""

    name: ClassVar[str] = "run_delta"
    struct: ClassVar = DeltaStruct

    weights: DeltaWeights
    projected: torch.Tensor  # [T, C + H * V + 2 H]: what is convolved, gates of outputs, parts and time steps
    windows: torch.Tensor  # [slots, W - 1, C]: the last inputs of the convolution
    pool: torch.Tensor  # [slots, H, K, V]
    out: torch.Tensor  # [T, H, V]

    def tensors(self) -> dict[str, torch.Tensor | None]:
        own = {name: getattr(self.weights, name) for name in ("factors", "rates", "biases", "norm")}
        return own | {name: getattr(self, name) for name in ("projected", "windows", "pool", "out")}

    def sizes(self) -> dict[str, float] | None:
        w, tokens = self.weights, len(self.projected)
        (width, channels), heads, keys, values = w.factors.shape, w.heads, w.keys, w.values
        fit = (
            w.fit and channels == 2 * w.groups * keys + heads * values and fits(w.factors, (width, channels))
        )
        fit = fit and all(fits(each, (heads,)) for each in (w.rates, w.biases)) and fits(w.norm, (values,))
        fit = fit and fits(self.projected, (tokens, channels + heads * (values + 2)))
        fit = fit and fits(self.windows, (len(self.pool), width - 1, channels))
        fit = fit and fits(self.pool, (len(self.pool), heads, keys, values))
        fit = fit and fits(self.out, (tokens, heads, values))
        sizes = {"heads": heads, "groups": w.groups, "keys": keys, "values": values, "width": width}
        return {**sizes, "eps": w.eps} if fit else None
