"""The memory of states: for every function a pool of slots, on the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from serve_app.engine.sequence import Chunk
from serve_app.engine.state import StateSpec
from serve_app.engine.state.waves import Wave, waves_of

OWN_SLOTS: Final = 2  # one of zeros, before a first token, and one for states that are not kept


class StatePools:
    """Slots 0 .. num_slots-1 of every state of a model."""

    def __init__(self, specs: Sequence[StateSpec], num_slots: int, device: torch.device) -> None:
        self._device, self._zero, self._unread = device, num_slots, num_slots + 1
        self._pools = [
            torch.zeros(num_slots + OWN_SLOTS, *spec.shape, dtype=spec.dtype, device=device) for spec in specs
        ]

    def of_step(self, chunks: Iterable[Chunk]) -> StepStates:
        """The states of one forward of `chunks`; each chunk names the slots that it reads and writes."""
        return StepStates(self._pools, waves_of(chunks, self._zero, self._unread, self._device))


class StepStates:
    """As `States`."""

    def __init__(self, pools: Sequence[torch.Tensor], waves: Sequence[Wave]) -> None:
        self.waves = waves
        self._left = iter(pools)

    def next(self, spec: StateSpec) -> torch.Tensor:
        pool = next(self._left, None)
        if pool is None or pool.shape[1:] != spec.shape or pool.dtype != spec.dtype:
            raise RuntimeError("the model calls functions with a state in another order than in its dry run")
        return pool
