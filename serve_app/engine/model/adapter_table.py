"""The adapters that are loaded on one model. Subclasses decide on the adapters' memory and products.

Depends on the model's sites and the chunks of a step, but not on files or requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.model.lora import LowRank, Place, RowAdapters, Site
from serve_app.engine.model.sites import find_sites
from serve_app.engine.sequence import Chunk

LoadedT = TypeVar("LoadedT")


class AdapterTable(ABC, Generic[LoadedT]):
    """The adapters that requests may name, by key. Only the engine's thread may call `put` and `drop`."""

    def __init__(
        self, module: PreTrainedModel, dtype: torch.dtype, device: torch.device, config: EngineConfig
    ) -> None:
        """Finds the sites of `module`, whose linears already have their final form.

        `config` has the number of adapters and the largest rank.
        """
        self._sites = tuple(find_sites(module))
        self.dtype = dtype  # that matrices are kept in
        self._device = device

    @property
    def shapes(self) -> dict[Place, tuple[int, int]]:
        """(N, K) of every site that an adapter can change; empty if this model has none."""
        return {
            (site.layer, module): (width, site.features)
            for site in self._sites
            for module, width in site.widths.items()
        }

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The bytes of memory that an adapter holds."""

    @property
    @abstractmethod
    def bytes_to_come(self) -> int:
        """The additional memory when every adapter is loaded with the largest rank."""

    @abstractmethod
    def __len__(self) -> int:
        """How many are loaded."""

    @abstractmethod
    def compile(self, updates: Iterable[LowRank]) -> LoadedT:
        """The adapter made of `updates`, with at most one update for each place, all of the given shapes.
        Callable from any thread."""

    @abstractmethod
    def put(self, key: str, adapter: LoadedT) -> None:
        """Let requests name the adapter. One already loaded under `key` stays, as its content is the same."""

    @abstractmethod
    def drop(self, key: str) -> None:
        """Forget an adapter that no request names any more."""

    def of_step(self, chunks: Iterable[Chunk]) -> RowAdapters | None:
        """The adapters of the rows of `chunks`; None if no row has one.

        Raises KeyError for an adapter that is not loaded.
        """
        spans: defaultdict[str, list[range]] = defaultdict(list)
        row, decodes = 0, True
        for chunk in chunks:
            key = chunk.sequence.adapter
            if key is not None:
                spans[key].append(range(row, row + chunk.length))
            row += chunk.length
            decodes = decodes and chunk.length == 1
        return self._of_rows(spans, decodes) if spans else None

    @abstractmethod
    def _of_rows(self, spans: Mapping[str, list[range]], decodes: bool) -> RowAdapters:
        """As `of_step`, given for each adapter (by its key) the rows that use it, in ascending order.
        `decodes`: each chunk has one row."""

    def _at_sites(self, updates: Iterable[LowRank]) -> Iterator[tuple[Site, list[LowRank]]]:
        """The updates of each site that has any, in the order of the site's modules."""
        at = {(update.layer, update.module): update for update in updates}
        for site in self._sites:
            parts = [
                site.arranged(at[site.layer, module]) for module in site.widths if (site.layer, module) in at
            ]
            if parts:
                yield site, parts


Adapters: TypeAlias = AdapterTable[Any]  # whose loaded adapters only the table itself knows
MakeAdapters: TypeAlias = Callable[[PreTrainedModel, torch.dtype, torch.device, EngineConfig], Adapters]
