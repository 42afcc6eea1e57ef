"""The runner of rank 0: what it runs, all ranks run. An engine cannot tell it from a runner of one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from serve_app.engine.batch import Batch
from serve_app.engine.model.adapter_table import Adapters, AdapterTable
from serve_app.engine.model.isolation import DeviceBroken
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

    def send(self, command: Command) -> int:
        """Returns the command's number, from 1. Raises DeviceBroken if one of them is lost."""
        ...

    def reached(self, number: int) -> None:
        """This rank begins to run a command. If another one fails by it alone, the ranks are lost."""
        ...

    def check(self) -> None:
        """Raise DeviceBroken if one of them is lost."""
        ...

    def agree(self, number: int, error: Exception) -> None:
        """Return if a command has failed in every rank, as it has failed here by `error`. Otherwise the ranks
        no longer do the same: raises DeviceBroken."""
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
        self.stages = groups.stages
        # Steps that the others may run already, and this rank does not, in order.
        self._begun: deque[tuple[int, Batch, Future[torch.Tensor]]] = deque()
        self.vocab_size, self.table_width = runner.vocab_size, runner.table_width
        self.block_size, self.num_blocks = runner.block_size, runner.num_blocks
        self.num_slots, self.memory, self.device = runner.num_slots, runner.memory, runner.device
        self.adapters: Adapters | None = None
        if runner.adapters is not None:
            self.adapters = LeadingTable(runner.adapters, others, cuts, shapes, self._catch_up)

    def run(self, batch: Batch) -> torch.Tensor:
        return self.launch(batch)()

    def launch(self, batch: Batch) -> Callable[[], torch.Tensor]:
        logits: Future[torch.Tensor] = Future()
        self._begun.append((self._others.send(Step.of(batch, self.num_slots > 0)), batch, logits))

        def result() -> torch.Tensor:
            self._catch_up(logits)
            return logits.result()

        return result

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            self._catch_up()
            number = self._others.send(CopyBlocks(pairs))
            self._together(number, lambda: self._runner.copy_blocks(pairs))

    def check(self) -> None:
        self._others.check()

    def _catch_up(self, wanted: Future[torch.Tensor] | None = None) -> None:
        """Run the steps that have begun, up to the `wanted` one."""
        while self._begun and not (wanted is not None and wanted.done()):
            number, batch, logits = self._begun.popleft()
            try:
                logits.set_result(self._together(number, partial(self._compute, batch)))
            except DeviceBroken:
                raise
            except Exception as error:
                logits.set_exception(error)

    def _compute(self, batch: Batch) -> torch.Tensor:
        if batch.is_fed:
            self._groups.every.of_first(batch.input_ids)
        return self._runner.run(batch)

    def _together(self, number: int, compute: Callable[[], T]) -> T:
        self._others.reached(number)
        try:
            return compute()
        except Exception as error:
            self._others.agree(number, error)
            raise


@dataclass(frozen=True, slots=True)
class _Loaded:
    whole: list[LowRank]
    part: Any  # of rank 0, as its own table has compiled it


class LeadingTable(AdapterTable[_Loaded]):
    """The adapters of all ranks; of each adapter every rank has a part."""

    def __init__(
        self,
        own: Adapters,
        others: Others,
        cuts: AdapterCuts,
        shapes: Mapping[Place, tuple[int, int]],
        catch_up: Callable[[], None],
    ) -> None:
        """`catch_up` runs the steps that other ranks may have run already."""
        self._catch_up = catch_up
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
        self._catch_up()
        put = PutAdapter(key, [Update.of(each) for each in adapter.whole])
        self._others.reached(self._others.send(put))
        self._own.put(key, adapter.part)

    def drop(self, key: str) -> None:
        self._catch_up()
        self._others.reached(self._others.send(DropAdapter(key)))
        self._own.drop(key)

    def _of_rows(self, spans: Mapping[str, list[range]], decodes: bool) -> RowAdapters:
        return self._own._of_rows(spans, decodes)
