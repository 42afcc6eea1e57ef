"""Low-rank adapters (LoRA) as they run: every row of a step has an adapter of its own, or none.

An adapter adds `(x A^T) B^T` to the outputs of some linears, for its own rows only. Where
the model computes several modules side by side, the adapter does too: its A's lie one above
the other, its B's on a block diagonal. Both are packed like the model's own weights, so
a row's result does not depend on the other rows. Knows neither files, nor models, nor requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from serve_app.engine.linear.packed import Method, PackedLinear

ATTENTION: Final = ("q_proj", "k_proj", "v_proj")
MLP: Final = ("gate_proj", "up_proj")
MODULES: Final = (*ATTENTION, "o_proj", *MLP, "down_proj")  # as Llama and its kin call them

Place = tuple[int, str]  # a layer, and one of MODULES in it


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds at one place; its scale is in B."""

    layer: int
    module: str  # of MODULES
    a: torch.Tensor  # [r, K]
    b: torch.Tensor  # [N, r]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A linear as the model computes it: one module or several side by side."""

    layer: int
    features: int  # K
    widths: dict[str, int]  # module -> its outputs, in order


class SiteAdapter:
    """One adapter at one site."""

    def __init__(
        self, site: Site, parts: Sequence[LowRank], dtype: torch.dtype, device: torch.device
    ) -> None:
        rank, width = sum(len(part.a) for part in parts), sum(site.widths.values())
        down = torch.cat([part.a for part in parts]).to(device, dtype)
        up = torch.zeros(width, rank, dtype=dtype, device=device)
        starts = _starts(site.widths)
        column = 0
        for part in parts:
            row, r = starts[part.module], len(part.a)
            up[row : row + len(part.b), column : column + r] = part.b.to(device, dtype)
            column += r
        method = None if device.type == "cpu" else Method.PLAIN
        self._down = PackedLinear(down, None, method, lasting=False)
        self._up = PackedLinear(up, None, method, lasting=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N] float32."""
        return self._up.project(self._down.project(x.float()))

    @property
    def num_bytes(self) -> int:
        return self._down.num_bytes + self._up.num_bytes


class LoadedAdapter:
    """An adapter as it runs."""

    def __init__(self, pairs: dict[Site, SiteAdapter]) -> None:
        self.pairs = pairs
        self.num_bytes = sum(pair.num_bytes for pair in pairs.values())


class StepAdapters:
    """Which rows of a step have which adapter."""

    def __init__(self, rows: Sequence[tuple[LoadedAdapter, slice | torch.Tensor]]) -> None:
        self._rows = rows

    def add(self, site: Site, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to `out` [T, N] what the adapters make of `x` [T, K]."""
        for adapter, rows in self._rows:
            pair = adapter.pairs.get(site)
            if pair is None:
                continue
            delta = pair(x[rows]).to(out.dtype)
            if isinstance(rows, slice):
                out[rows].add_(delta)
            else:
                out.index_add_(0, rows, delta)


def _starts(widths: Mapping[str, int]) -> dict[str, int]:
    starts, at = {}, 0
    for module, width in widths.items():
        starts[module] = at
        at += width
    return starts
