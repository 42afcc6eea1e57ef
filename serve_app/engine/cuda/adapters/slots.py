"""The adapters of a model on a GPU, each in a slot of memory; all slots are allocated once, at the start.

Steps find an adapter by its slot, so a recorded step works with whichever adapters are in the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.cuda.adapters import kernels
from serve_app.engine.cuda.adapters.tiles import FEW, MANY, Tiles, tiles_of
from serve_app.engine.model.adapter_table import AdapterTable
from serve_app.engine.model.lora import LowRank, Site
from serve_app.engine.model.memory import CacheTooSmall

RANKS: Final = 16  # numbers of a rank that a program takes at once
INPUTS: Final = 128
OUTPUTS: Final = 128
PART: Final = 512  # inputs at least, where several programs share a sum
PROGRAMS: Final = 256  # enough to fill a GPU: with as many tiles, nothing is shared

_SHRINK, _EXPAND = map(Launcher, (kernels.shrink, kernels.expand))


class SiteStack:
    """Room at one site for `slots` adapters of ranks up to `max_rank`. Contiguous tensors of `dtype`."""

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
        """Fill a slot with the updates that one adapter has for this site, if any."""
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


Updates = Mapping[Site, Sequence[LowRank]]


@dataclass(frozen=True, slots=True)
class TiledAdapters:
    """The adapters of a step's rows."""

    stacks: Mapping[Site, SiteStack]
    tiles: Tiles

    def add(self, site: Site, x: torch.Tensor, out: torch.Tensor) -> None:
        """As `RowAdapters`."""
        self.stacks[site].add(x, out, self.tiles)


class StackedTable(AdapterTable[Updates]):
    """Slots for as many adapters as the settings allow, all of the largest rank.

    The device works in order, so steps that were launched before an adapter leaves its slot still find the
    adapter.
    """

    def __init__(
        self, module: PreTrainedModel, dtype: torch.dtype, device: torch.device, config: EngineConfig
    ) -> None:
        """Raises CacheTooSmall if the slots do not fit beside the weights."""
        super().__init__(module, dtype, device, config)
        slots, rank = config.max_adapters, config.max_adapter_rank
        try:
            self.stacks = {site: SiteStack(site, slots, rank, dtype, device) for site in self._sites}
        except torch.OutOfMemoryError as error:
            raise CacheTooSmall(
                f"{slots} adapters of rank {rank} do not fit on the GPU beside the weights; lower "
                "max_adapters or max_adapter_rank, or choose a smaller model or dtype"
            ) from error
        self._slots: dict[str, int] = {}
        self._free = list(range(slots))

    @property
    def num_bytes(self) -> int:
        return sum(stack.num_bytes for stack in self.stacks.values())

    @property
    def bytes_to_come(self) -> int:
        return 0

    def compile(self, updates: Iterable[LowRank]) -> Updates:
        return {
            site: [
                replace(part, a=part.a.to(self._device, self.dtype), b=part.b.to(self._device, self.dtype))
                for part in parts
            ]
            for site, parts in self._at_sites(updates)
        }

    def put(self, key: str, adapter: Updates) -> None:
        if key in self._slots:
            return
        slot = self._free.pop()
        with torch.inference_mode():
            for site, stack in self.stacks.items():
                stack.put(slot, adapter.get(site, ()))
        self._slots[key] = slot

    def drop(self, key: str) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def capacity(self) -> int:
        """How many adapters may be loaded at once."""
        return len(self._slots) + len(self._free)

    def _of_rows(self, spans: Mapping[str, list[range]], decodes: bool) -> TiledAdapters:
        rows = [(self._slots[key], each) for key, each in spans.items()]
        return TiledAdapters(self.stacks, tiles_of(rows, FEW if decodes else MANY, self._device))
