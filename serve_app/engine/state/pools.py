"""The memory of states: for every function a pool of slots, on the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from serve_app.engine.sequence import Chunk
from serve_app.engine.state import StateKernels, States, StateSpec
from serve_app.engine.state.waves import Span, Wave, waves_of

OWN_SLOTS: Final = 2  # one of zeros, before a first token, and one for states that are not kept


class StatePools:
    """Slots 0 .. num_slots-1 of every state of a model."""

    def __init__(
        self,
        specs: Sequence[StateSpec],
        num_slots: int,
        device: torch.device,
        kernels: StateKernels | None = None,
    ) -> None:
        self._device, self._zero, self._unread = device, num_slots, num_slots + 1
        self._kernels = kernels
        self._pools = [
            torch.zeros(num_slots + OWN_SLOTS, *spec.shape, dtype=spec.dtype, device=device) for spec in specs
        ]

    def of_step(self, chunks: Iterable[Chunk]) -> StepStates:
        """The states of one forward of `chunks`; each chunk names the slots that it reads and writes."""
        waves = waves_of(chunks, self._zero, self._unread, self._device)
        return StepStates(self._pools, waves, self._kernels)

    def of_decodes(self, count: int) -> LastingDecodes:
        """The states of forwards of up to `count` decodes."""
        return LastingDecodes(self._pools, count, self._zero, self._unread, self._kernels)


class StepStates:
    """As `States`."""

    def __init__(
        self, pools: Sequence[torch.Tensor], waves: Sequence[Wave], kernels: StateKernels | None
    ) -> None:
        self.waves, self.kernels = waves, kernels
        self._left = iter(pools)

    def next(self, spec: StateSpec) -> torch.Tensor:
        pool = next(self._left, None)
        if pool is None or pool.shape[1:] != spec.shape or pool.dtype != spec.dtype:
            raise RuntimeError("the model calls functions with a state in another order than in its dry run")
        return pool


class LastingDecodes:
    """The states of decodes that a graph may record: their slots are always in the same memory."""

    def __init__(
        self,
        pools: Sequence[torch.Tensor],
        most: int,
        zero: int,
        unread: int,
        kernels: StateKernels | None,
    ) -> None:
        self._pools, self._null, self._kernels = pools, (zero, unread), kernels
        self._table = torch.zeros(4, most, dtype=torch.int64, device=pools[0].device)
        self._table[0] = torch.arange(most, device=pools[0].device)
        self._table[1] = 1
        self._waves: dict[int, Wave] = {}

    def of(self, count: int) -> StepStates:
        """The states of one forward of `count` decodes, for whatever slots `fill` writes."""
        if count not in self._waves:
            spans = [Span(row, 1, *self._null) for row in range(count)]
            self._waves[count] = Wave(spans, self._table.device, self._table[:, :count])
        return StepStates(self._pools, [self._waves[count]], self._kernels)

    def fill(self, states: States | None, count: int) -> None:
        """Write the slots of a step of decodes, and for the rest of `count` the slots of null sequences."""
        tokens = 0
        if states is not None:
            (wave,) = states.waves
            tokens = len(wave.spans)
            self._table[2:, :tokens].copy_(wave.table[2:])
        for fields, slot in zip(self._table[2:], self._null, strict=True):
            fields[tokens:count].fill_(slot)
