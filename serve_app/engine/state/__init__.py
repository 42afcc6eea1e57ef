"""Stateful layers: convolutions and recurrences over the tokens of a sequence, in a packed batch.

A state is what one such function remembers after a number of tokens, and a slot holds all states of a
sequence at one position. A step reads one slot and writes another, so a step that runs twice gives the same
states. `functions` lists the kinds; each kind is a file beside it. Does not depend on models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from serve_app.engine.state.waves import Wave


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of one function for one sequence, learnt from a dry run at load."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


class StateKernels(Protocol):
    """Functions for the spans of a wave: they read slots of `pool`, write others, and fill `out`.

    `x`, `into`, `out_of`, `pool` and `out` are contiguous. All are float32 but for those of a convolution.
    """

    def convolve(
        self,
        x: torch.Tensor,  # [T, C]
        factors: torch.Tensor,  # [C, K]
        bias: torch.Tensor | None,  # [C]
        pool: torch.Tensor,  # [slots, K - 1, C]
        out: torch.Tensor,  # [T, C]
        wave: Wave,
        *,
        silu: bool,
    ) -> None: ...

    def recur(
        self,
        query: torch.Tensor,  # these as of `matrices.run_matrices`
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        part: torch.Tensor | None,
        pool: torch.Tensor,
        out: torch.Tensor,
        wave: Wave,
    ) -> None: ...

    def scan(
        self,
        x: torch.Tensor,  # [T, C]
        step: torch.Tensor,  # [T, C]
        rates: torch.Tensor,  # [C, N]
        into: torch.Tensor,  # [T, N]
        out_of: torch.Tensor,  # [T, N]
        pool: torch.Tensor,  # [slots, C, N]
        out: torch.Tensor,  # [T, C]
        wave: Wave,
    ) -> None: ...


class States(Protocol):
    """The states of one forward, as the functions of `functions` use them."""

    @property
    def kernels(self) -> StateKernels | None:
        """The kernels of the device, if it has some; see `native_states.kernels_for`."""
        ...

    @property
    def waves(self) -> Sequence[Wave]:
        """The spans of the step, in the order in which they run. Other rows of the batch have no sequence."""
        ...

    def next(self, spec: StateSpec) -> torch.Tensor:
        """The pool [slots, *spec.shape] of the next function; functions are distinguished by the order of
        calls."""
        ...


class StateRecorder:
    """The states of a dry run: they record the specs, and have no sequences, so functions return zeros."""

    waves: Sequence[Wave] = ()
    kernels: StateKernels | None = None

    def __init__(self) -> None:
        self.specs: list[StateSpec] = []

    def next(self, spec: StateSpec) -> torch.Tensor:
        self.specs.append(spec)
        return torch.empty(0, *spec.shape, dtype=spec.dtype)
