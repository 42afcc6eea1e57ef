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

    @property
    def projected(self) -> int:
        """The numbers of a token that the rule takes."""
        return self.factors.shape[1] + self.heads * (self.values + 2)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by the names of the struct's fields."""
        return {name: getattr(self, name) for name in ("factors", "rates", "biases", "norm")}

    def sizes(self, windows: torch.Tensor, pool: torch.Tensor) -> dict[str, float] | None:
        """The sizes of the struct; None for tensors that do not fit each other."""
        (width, channels), heads, keys, values = self.factors.shape, self.heads, self.keys, self.values
        fit = self.fit and channels == 2 * self.groups * keys + heads * values
        fit = fit and fits(self.factors, (width, channels)) and fits(self.norm, (values,))
        fit = fit and all(fits(each, (heads,)) for each in (self.rates, self.biases))
        fit = fit and fits(windows, (len(pool), width - 1, channels))
        fit = fit and fits(pool, (len(pool), heads, keys, values))
        sizes = {"heads": heads, "groups": self.groups, "keys": keys, "values": values, "width": width}
        return {**sizes, "eps": self.eps} if fit else None

    def bound(self, windows: torch.Tensor, pool: torch.Tensor) -> DeltaStruct:
        """The rule with its states, for a call that brings the rows. Raises ValueError if they do not fit."""
        sizes = self.sizes(windows, pool)
        if sizes is None:
            raise ValueError("the states do not fit the delta rule")
        pointers = {name: each.data_ptr() for name, each in self.tensors().items()}
        pointers |= {"windows": windows.data_ptr(), "pool": pool.data_ptr()}
        return DeltaStruct(projected=None, out=None, **pointers, **sizes)


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
        own = {name: getattr(self, name) for name in ("projected", "windows", "pool", "out")}
        return self.weights.tensors() | own

    def sizes(self) -> dict[str, float] | None:
        w, tokens = self.weights, len(self.projected)
        fit = fits(self.projected, (tokens, w.projected)) and fits(self.out, (tokens, w.heads, w.values))
        return w.sizes(self.windows, self.pool) if fit else None
