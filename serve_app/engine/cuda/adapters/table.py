"""The adapters of a model on a GPU, each in a slot of memory that is taken once, at the start.

Steps find an adapter by its slot, so a recorded step serves whatever adapters its rows have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.cuda.adapters.stack import SiteStack
from serve_app.engine.cuda.adapters.tiles import FEW, MANY, Tiles, tiles_of
from serve_app.engine.model.adapter_table import AdapterTable
from serve_app.engine.model.lora import LowRank, Site
from serve_app.engine.model.memory import CacheTooSmall

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

    The device works in order: steps that were launched before an adapter leaves its slot still find it.
    """

    def __init__(
        self, module: PreTrainedModel, dtype: torch.dtype, device: torch.device, config: EngineConfig
    ) -> None:
        """Raises CacheTooSmall where the slots do not fit beside the weights."""
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
