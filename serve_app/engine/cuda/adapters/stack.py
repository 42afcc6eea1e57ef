"""The matrices of all adapters at one site, in one piece of memory, and their products."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.cuda.adapters import kernels
from serve_app.engine.cuda.adapters.tiles import Tiles
from serve_app.engine.model.lora import LowRank, Site

RANKS: Final = 16  # numbers of a rank that a program takes at once
INPUTS: Final = 128
OUTPUTS: Final = 128
PART: Final = 512  # inputs at least, where several programs share a sum
PROGRAMS: Final = 256  # enough to fill a GPU: with as many tiles, nothing is shared

_SHRINK, _EXPAND = map(Launcher, (kernels.shrink, kernels.expand))


class SiteStack:
    """Room for `slots` adapters of ranks up to `max_rank` at one site. Contiguous tensors of `dtype`."""

    def __init__(
        self, site: Site, slots: int, max_rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._site = site
        self._rank = -(-max_rank // RANKS) * RANKS
        self._outputs = {name: (at, where) for at, (name, where) in enumerate(site.outputs())}
        self._a = torch.zeros(slots, len(site.widths), self._rank, site.features, dtype=dtype, device=device)
        self._b = torch.zeros(slots, site.width, self._rank, dtype=dtype, device=device)
        self._ranks = torch.zeros(slots, dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        return self._a.nbytes + self._b.nbytes

    def put(self, slot: int, parts: Iterable[LowRank]) -> None:
        """Fill a slot with one adapter's updates of this site, which may be none."""
        self._a[slot].zero_()
        self._b[slot].zero_()
        largest = 0
        for part in parts:
            at, outputs = self._outputs[part.module]
            rank = len(part.a)
            self._a[slot, at, :rank].copy_(part.a)
            self._b[slot, outputs, :rank].copy_(part.b)
            largest = max(largest, rank)
        self._ranks[slot].fill_(largest)

    def add(self, x: torch.Tensor, out: torch.Tensor, tiles: Tiles) -> None:
        """Add the products of the adapters of the rows in `tiles` with x [T, K] to out [T, N]."""
        modules, rank, features = self._a.shape[1:]
        if x.shape[1] != features or out.shape != (len(x), self._site.width):
            raise ValueError(f"a linear of {self._a.shape} and {self._b.shape} got {x.shape}, {out.shape}")
        if not (x.is_contiguous() and out.is_contiguous()):
            raise ValueError("inputs and outputs of adapters must be contiguous")
        count = len(tiles.bounds)
        splits = max(1, min(features // PART, PROGRAMS // count))
        hidden = torch.empty(splits, count * tiles.size, modules * rank, dtype=torch.float32, device=x.device)
        shape = {"MODULES": modules, "RANK": rank, "TILE": tiles.size, "RANKS": RANKS}
        _SHRINK(
            (count, modules * rank // RANKS, splits),
            *(x, self._a, self._ranks, tiles.order, tiles.bounds, hidden),
            K=features,
            STEP=INPUTS,
            **shape,
        )
        widths = *self._site.widths.values(), 0, 0
        blocks = sum(-(-width // OUTPUTS) for width in widths)
        _EXPAND(
            (count, blocks),
            *(hidden, self._b, self._ranks, tiles.order, tiles.bounds, out, splits),
            N=self._site.width,
            FIRST=widths[0],
            SECOND=widths[1],
            OUTPUTS=OUTPUTS,
            **shape,
        )
