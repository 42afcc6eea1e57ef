"""Adapters as pairs of packed linears, on any device.

Where the model computes several modules side by side, an adapter does so too: its A matrices are stacked, and
its B matrices form a block diagonal. A and B are packed like the model's own weights, so the result of a row
does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.model.adapter_table import AdapterTable
from serve_app.engine.model.lora import LowRank, Site
from serve_app.engine.transfer import send
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.plain import load_on_cpu
from serve_app.engine.weights.torch_weight import TorchWeight

PANEL: Final = 32  # packing may pad a rank to a multiple of this


class SiteAdapter:
    """One adapter at one site."""

    def __init__(
        self, site: Site, parts: Sequence[LowRank], dtype: torch.dtype, device: torch.device
    ) -> None:
        rank = sum(len(part.a) for part in parts)
        down = torch.cat([part.a for part in parts]).to(device, dtype)
        up = torch.zeros(site.width, rank, dtype=dtype, device=device)
        outputs = dict(site.outputs())
        column = 0
        for part in parts:
            r = len(part.a)
            up[outputs[part.module], column : column + r] = part.b.to(device, dtype)
            column += r
        load = load_on_cpu if device.type == "cpu" else TorchWeight
        self._down = PackedLinear(down, None, load, lasting=False)
        self._up = PackedLinear(up, None, load, lasting=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N] float32."""
        return self._up.project(self._down.project(x.float()))

    @property
    def num_bytes(self) -> int:
        return self._down.num_bytes + self._up.num_bytes


class PackedAdapter:
    """An adapter as it runs."""

    def __init__(self, pairs: dict[Site, SiteAdapter]) -> None:
        self.pairs = pairs
        self.num_bytes = sum(pair.num_bytes for pair in pairs.values())


class PackedTable(AdapterTable[PackedAdapter]):
    """An adapter table that keeps each adapter in its own memory."""

    def __init__(
        self, module: PreTrainedModel, dtype: torch.dtype, device: torch.device, config: EngineConfig
    ) -> None:
        super().__init__(module, dtype, device, config)
        self._most, self._max_rank = config.max_adapters, config.max_adapter_rank
        self._loaded: dict[str, PackedAdapter] = {}

    @property
    def num_bytes(self) -> int:
        return sum(adapter.num_bytes for adapter in self._loaded.values())

    @property
    def bytes_to_come(self) -> int:
        return self._most * self.bytes_at(self._max_rank) - self.num_bytes

    def bytes_at(self, rank: int) -> int:
        """The memory of an adapter that has this rank and changes every site."""
        wide = sum(len(site.widths) * (site.features + site.width) for site in self._sites)
        return -(-rank // PANEL) * PANEL * wide * self.dtype.itemsize

    def compile(self, updates: Iterable[LowRank]) -> PackedAdapter:
        with torch.no_grad():
            return PackedAdapter(
                {
                    site: SiteAdapter(site, parts, self.dtype, self._device)
                    for site, parts in self._at_sites(updates)
                }
            )

    def put(self, key: str, adapter: PackedAdapter) -> None:
        self._loaded.setdefault(key, adapter)

    def drop(self, key: str) -> None:
        self._loaded.pop(key, None)

    def __len__(self) -> int:
        return len(self._loaded)

    def _of_rows(self, spans: Mapping[str, list[range]], decodes: bool) -> StepAdapters:
        return StepAdapters([(self._loaded[key], self._rows(each)) for key, each in spans.items()])

    def _rows(self, spans: list[range]) -> slice | torch.Tensor:
        rows = [row for span in spans for row in span]
        if rows[-1] - rows[0] == len(rows) - 1:
            return slice(rows[0], rows[-1] + 1)
        return send(self._device, np.array(rows, dtype=np.int64))[0]


class StepAdapters:
    """Which rows of a step have which adapter."""

    def __init__(self, rows: Sequence[tuple[PackedAdapter, slice | torch.Tensor]]) -> None:
        self._rows = rows

    def add(self, site: Site, x: torch.Tensor, out: torch.Tensor) -> None:
        """As `RowAdapters`."""
        for adapter, rows in self._rows:
            pair = adapter.pairs.get(site)
            if pair is None:
                continue
            delta = pair(x[rows]).to(out.dtype)
            if isinstance(rows, slice):
                out[rows].add_(delta)
            else:
                out.index_add_(0, rows, delta)
