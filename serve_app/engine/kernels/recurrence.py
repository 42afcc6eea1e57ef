"""The native functions with a state: recurrences over matrices and over channels, and convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from serve_app.engine.kernels.spans import SpanFunction, fits
from serve_app.engine.kernels.structs import TYPES, ConvolutionStruct, RecurrenceStruct, ScanStruct


@dataclass(frozen=True, slots=True)
class Recurrence(SpanFunction):
    """A token makes a head's matrix decay, adds an outer product with its key, and reads its query's value.

    The outer product is of the key and the value or, with `part`, of the key and this part of the difference
    between the value and what the matrix has for the key. Each group of queries and keys is used by H / G
    heads. All are float32.
    """

    name: ClassVar[str] = "recur"
    struct: ClassVar = RecurrenceStruct

    query: torch.Tensor  # [T, G, K]
    key: torch.Tensor  # [T, G, K]
    value: torch.Tensor  # [T, H, V]
    decay: torch.Tensor  # [T, H, 1], or [T, H, K]: a factor for each key
    part: torch.Tensor | None  # [T, H]
    pool: torch.Tensor  # [slots, H, K, V]: the matrices
    out: torch.Tensor  # [T, H, V]

    def tensors(self) -> dict[str, torch.Tensor | None]:
        names = ("query", "key", "value", "decay", "part", "pool", "out")
        return {name: getattr(self, name) for name in names}

    def sizes(self) -> dict[str, float] | None:
        (tokens, heads, values), (_, groups, keys) = self.value.shape, self.key.shape
        decays = self.decay.shape[-1]
        fit = all(fits(each, (tokens, groups, keys)) for each in (self.query, self.key))
        fit = fit and all(fits(each, (tokens, heads, values)) for each in (self.value, self.out))
        fit = fit and fits(self.decay, (tokens, heads, decays)) and fits(self.part, (tokens, heads))
        fit = fit and fits(self.pool, (len(self.pool), heads, keys, values))
        if not fit or decays not in (1, keys) or heads % groups:
            return None
        return {"heads": heads, "groups": groups, "keys": keys, "values": values, "decays": decays}


@dataclass(frozen=True, slots=True)
class Scan(SpanFunction):
    """A token lets the numbers of a channel decay, each at a rate of its own, and adds to them. All are
    float32."""

    name: ClassVar[str] = "scan"
    struct: ClassVar = ScanStruct

    x: torch.Tensor  # [T, C]
    step: torch.Tensor  # [T, C]
    rates: torch.Tensor  # [C, N]
    into: torch.Tensor  # [T, N]
    out_of: torch.Tensor  # [T, N]
    pool: torch.Tensor  # [slots, C, N]
    out: torch.Tensor  # [T, C]

    def tensors(self) -> dict[str, torch.Tensor | None]:
        names = ("x", "step", "rates", "into", "out_of", "pool", "out")
        return {name: getattr(self, name) for name in names}

    def sizes(self) -> dict[str, float] | None:
        (tokens, channels), states = self.x.shape, self.into.shape[-1]
        fit = all(fits(each, (tokens, channels)) for each in (self.x, self.step, self.out))
        fit = fit and all(fits(each, (tokens, states)) for each in (self.into, self.out_of))
        fit = fit and fits(self.rates, (channels, states))
        fit = fit and fits(self.pool, (len(self.pool), channels, states))
        return {"channels": channels, "states": states} if fit else None


@dataclass(frozen=True, slots=True)
class Convolution(SpanFunction):
    """Sums over the last W inputs of a channel, in float32. All are of one type, float32 or bfloat16."""

    name: ClassVar[str] = "convolve"
    struct: ClassVar = ConvolutionStruct

    x: torch.Tensor  # [T, C]
    weight: torch.Tensor  # [C, W]: the factor of the oldest input is the first
    bias: torch.Tensor | None  # [C]
    silu: bool  # whether outputs are the SiLU of the sums
    pool: torch.Tensor  # [slots, W - 1, C]: the last inputs
    out: torch.Tensor  # [T, C]

    def tensors(self) -> dict[str, torch.Tensor | None]:
        names = ("x", "weight", "bias", "pool", "out")
        return {name: getattr(self, name) for name in names}

    def sizes(self) -> dict[str, float] | None:
        dtype, (tokens, channels), width = self.x.dtype, self.x.shape, self.weight.shape[-1]
        fit = dtype in TYPES and all(fits(each, (tokens, channels), dtype) for each in (self.x, self.out))
        fit = fit and fits(self.weight, (channels, width), dtype) and fits(self.bias, (channels,), dtype)
        fit = fit and fits(self.pool, (len(self.pool), width - 1, channels), dtype)
        if not fit:
            return None
        return {"channels": channels, "width": width, "silu": self.silu, "wide": dtype == torch.float32}
