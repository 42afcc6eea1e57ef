"""The memory of states: for every function a pool of slots, on the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from serve_app.engine.sequence import Chunk
from serve_app.engine.state import StateKernels, States, StateSpec
from serve_app.engine.state.waves import LastingWave, Wave, waves_of

OWN_SLOTS: Final = 2  # one of zeros, before a first token, and one for states that are not kept
# Of a step with prompts that a graph records: states are kept at one place inside of a chunk.
WAVES: Final = 2
NO_SPAN: Final = -1


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

    def lasting(self, rows: int, sequences: int) -> LastingStates | None:
        """The states of steps of up to `rows` rows and `sequences` sequences that a graph may record.

        None: plain torch computes the states, which needs to know the spans on the host.
        """
        if self._kernels is None:
            return None
        return LastingStates(self._pools, rows, sequences, self._kernels)


class StepStates:
    """As `States`."""

    def __init__(
        self, pools: Sequence[torch.Tensor], waves: Sequence[Wave], kernels: StateKernels | None
    ) -> None:
        self.pools, self.waves, self.kernels = pools, waves, kernels
        self._left = iter(pools)

    def next(self, spec: StateSpec) -> torch.Tensor:
        pool = next(self._left, None)
        if pool is None or pool.shape[1:] != spec.shape or pool.dtype != spec.dtype:
            raise RuntimeError("the model calls functions with a state in another order than in its dry run")
        return pool


class LastingStates:
    """The states of steps that a graph may record: what kernels read of their spans is always in the same
    memory."""

    def __init__(
        self, pools: Sequence[torch.Tensor], rows: int, sequences: int, kernels: StateKernels
    ) -> None:
        device = pools[0].device
        self._pools, self._kernels = pools, kernels
        self._tables = torch.zeros(WAVES, 4, sequences, dtype=torch.int64, device=device)
        self._owners = torch.full((WAVES, rows), NO_SPAN, dtype=torch.int64, device=device)
        self._waves: dict[tuple[int, int, int], list[LastingWave]] = {}

    @staticmethod
    def fit(states: States | None, waves: int) -> bool:
        """Whether a graph of that many waves can compute those of a step."""
        return states is not None and len(states.waves) <= waves

    def of(self, rows: int, sequences: int, waves: int = WAVES) -> StepStates:
        """The states of one forward of `rows` rows of `sequences` sequences, whatever `fill` writes."""
        size = rows, sequences, waves
        if size not in self._waves:
            both = zip(self._tables[:waves, :, :sequences], self._owners[:waves, :rows], strict=True)
            self._waves[size] = [LastingWave(*each) for each in both]
        return StepStates(self._pools, self._waves[size], self._kernels)

    def fill(self, states: States | None, tokens: int) -> None:
        """Write the spans of a step of `tokens` rows; all other spans are null."""
        self._tables[:, 1].zero_()
        self._owners.fill_(NO_SPAN)
        for place, wave in enumerate(states.waves if states is not None else ()):
            self._tables[place, :, : wave.table.shape[1]].copy_(wave.table)
            self._owners[place, :tokens].copy_(wave.owners(tokens))
