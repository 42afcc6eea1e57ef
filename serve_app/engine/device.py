"""What each kind of device provides for a model: the only interface between a loaded module and what runs it.

A new kind is a class here or beside its kernels, and a line in `devices.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.state import StateKernels
from serve_app.engine.weights.format import WeightFormat

Progress = Callable[[str], None]


class Device(Protocol):
    """Attention, linears, adapters and steps on one kind of device."""

    @property
    def kind(self) -> str:
        """The name that weight formats use for this kind of device."""
        ...

    @property
    def backend(self) -> AttentionBackend: ...

    @property
    def make_adapters(self) -> MakeAdapters: ...

    @property
    def state_kernels(self) -> StateKernels | None:
        """Kernels for functions with a state; None: native functions of a CPU, or plain torch."""
        ...

    def accelerate(
        self, module: PreTrainedModel, dtype: torch.dtype, weights: WeightFormat, progress: Progress
    ) -> PreTrainedModel:
        """Make `module`, with weights of `dtype`, fast in place; its linears get the format `weights`."""
        ...

    def largest_graph(self) -> int:
        """The number of tokens in the largest step with prompts that `record` may record; 0 if none."""
        ...

    def record(self, runner: ModelRunner, progress: Progress) -> None:
        """Record steps of `runner`, whose cache is already allocated, so that they can be replayed."""
        ...


class TorchDevice:
    """Transformers' own layers in plain torch, on whatever device the model is."""

    kind = "torch"
    make_adapters: MakeAdapters = PackedTable
    state_kernels: StateKernels | None = None

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend

    def accelerate(
        self, module: PreTrainedModel, dtype: torch.dtype, weights: WeightFormat, progress: Progress
    ) -> PreTrainedModel:
        return module

    def largest_graph(self) -> int:
        return 0

    def record(self, runner: ModelRunner, progress: Progress) -> None:
        """Records nothing."""
