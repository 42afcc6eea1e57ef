"""The runner of rank 0: what it runs, all ranks run. An engine cannot tell it from a runner of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from serve_app.engine.batch import Batch
from serve_app.engine.model.adapter_table import Adapters, AdapterTable
from serve_app.engine.model.lora import LowRank, Place, RowAdapters
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.ranks.commands import Command, CopyBlocks, DropAdapter, PutAdapter, Step, Update
from serve_app.engine.ranks.groups import RankGroups

T = TypeVar("T")


class Others(Protocol):
    """The other ranks."""

    def await_ready(self) -> dict[Place, tuple[int, int]]:
        """Wait until each of them has its runner. Returns the shapes (N, K) of all linears in the whole model
        that adapters can change, and that some of them have."""
        ...

    def send(self, command: Command) -> None:
        """Raises DeviceBroken if one of them is lost."""
        ...

    def check(self) -> None:
        """Raise DeviceBroken if one of them is lost."""
        ...

    def agree(self, error: Exception) -> None:
        """Return if the last command has failed in every rank, as it has failed here by `error`. Otherwise
        the ranks no longer do the same: raises DeviceBroken."""
        ...


class AdapterCuts(Protocol):
    """How adapters are divided among ranks."""

    def whole(self, layer: int, module: str, shape: tuple[int, int]) -> tuple[int, int]:
        """The shape (N, K) of a layer's linear in the whole model, by that of this rank's part."""
        ...

    def part(
        self, layer: int, module: str, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's parts of A [r, K] and B [N, r]."""
        ...


def whole_shapes(table: Adapters | None, cuts: AdapterCuts) -> dict[Place, tuple[int, int]]:
    """The shapes in the whole model of the linears that a rank's table can change."""
    own = {} if table is None else table.shapes
    return {place: cuts.whole(*place, shape) for place, shape in own.items()}


def part_of(updates: Iterable[LowRank], cuts: AdapterCuts) -> list[LowRank]:
    """This rank's part of an adapter."""
    return [
        LowRank(each.layer, each.module, *cuts.part(each.layer, each.module, each.a, each.b))
        for each in updates
    ]


class LeadingRunner:
    """As `isolation.Runner`, over `runner`, which has the part of rank 0."""

    def __init__(
        self,
        runner: ModelRunner,
        groups: RankGroups,
        others: Others,
        cuts: AdapterCuts,
        shapes: Mapping[Place, tuple[int, int]],
    ) -> None:
        """`shapes`: as of `Others.await_ready`."""
        self._runner, self._groups, self._others = runner, groups, others
        self.vocab_size, self.table_width = runner.vocab_size, runner.table_width
        self.block_size, self.num_blocks = runner.block_size, runner.num_blocks
        self.num_slots, self.memory, self.device = runner.num_slots, runner.memory, runner.device
        self.adapters: Adapters | None = None
        if runner.adapters is not None:
            self.adapters = LeadingTable(runner.adapters, others, cuts, shapes)

    def run(self, batch: Batch) -> torch.Tensor:
        self._others.send(Step.of(batch, self.num_slots > 0))

        def compute() -> torch.Tensor:
            if batch.is_fed:
                self._groups.every.of_first(batch.input_ids)
            return self._runner.run(batch)

        return self._together(compute)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            self._others.send(CopyBlocks(pairs))
            self._together(lambda: self._runner.copy_blocks(pairs))

    def check(self) -> None:
        self._others.check()

    def _together(self, compute: Callable[[], T]) -> T:
        try:
            return compute()
        except Exception as error:
            self._others.agree(error)
            raise


@dataclass(frozen=True, slots=True)
class _Loaded:
    whole: list[LowRank]
    part: Any  # of rank 0, as its own table has compiled it


class LeadingTable(AdapterTable[_Loaded]):
    """The adapters of all ranks; of each adapter every rank has a part."""

    def __init__(
        self, own: Adapters, others: Others, cuts: AdapterCuts, shapes: Mapping[Place, tuple[int, int]]
    ) -> None:
        self._own, self._others, self._cuts = own, others, cuts
        self.dtype = own.dtype
        self._shapes = dict(sorted((whole_shapes(own, cuts) | dict(shapes)).items()))

    @property
    def shapes(self) -> dict[Place, tuple[int, int]]:
        return self._shapes

    @property
    def num_bytes(self) -> int:
        return self._own.num_bytes

    @property
    def bytes_to_come(self) -> int:
        return self._own.bytes_to_come

    def __len__(self) -> int:
        return len(self._own)

    def compile(self, updates: Iterable[LowRank]) -> _Loaded:
        whole = list(updates)
        return _Loaded(whole, self._own.compile(part_of(whole, self._cuts)))

    def put(self, key: str, adapter: _Loaded) -> None:
        self._others.send(PutAdapter(key, [Update.of(each) for each in adapter.whole]))
        self._own.put(key, adapter.part)

    def drop(self, key: str) -> None:
        self._others.send(DropAdapter(key))
        self._own.drop(key)

    def _of_rows(self, spans: Mapping[str, list[range]], decodes: bool) -> RowAdapters:
        return self._own._of_rows(spans, decodes)
