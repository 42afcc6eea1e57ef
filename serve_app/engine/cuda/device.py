"""The `Device` for a GPU, used by `assemble`: fused layers and adapters in Triton, and steps as graphs."""

from __future__ import annotations

from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.cuda.adapters.slots import StackedTable
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.graphs import graph_steps, largest_graph
from serve_app.engine.cuda.states.launch import TritonStates
from serve_app.engine.device import Progress
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.plain import PLAIN


class TritonDevice:
    """As `Device`. The device can also be a CPU, in Triton's interpreter."""

    kind: Final = "triton"

    def __init__(
        self,
        backend: AttentionBackend,
        config: ModelConfig,
        device: torch.device,
        *,
        stacked: bool = True,
        experts: bool = True,
        states: bool = True,
    ) -> None:
        """`stacked`: adapters are added by kernels, and not by plain torch. `experts` and `states`: these are
        computed by kernels, too."""
        self.state_kernels = TritonStates() if states else None
        self.backend = backend
        self.make_adapters: MakeAdapters = StackedTable if stacked else PackedTable
        self._experts = experts
        self._config, self._graphed = config, device.type == "cuda" and config.engine.cuda_graphs
        self._graphed = self._graphed and config.pipeline_parallel == 1

    def accelerate(
        self, module: PreTrainedModel, dtype: torch.dtype, weights: WeightFormat, progress: Progress
    ) -> PreTrainedModel:
        made = "fusing" if weights is PLAIN else f"quantising the weights to {weights.name}, and fusing"
        progress(f"{made} the layers (the first start on a machine compiles their kernels)")
        return accelerate_cuda(module, dtype, weights, experts=self._experts, progress=progress)

    def largest_graph(self) -> int:
        return largest_graph(self._config.engine.max_step_tokens) if self._graphed else 0

    def record(self, runner: ModelRunner, progress: Progress) -> None:
        if not self._graphed:
            return
        # Graphs with adapters are recorded for adapters of the settings, not for those that clients may send.
        graph_steps(
            runner.module,
            runner.backend,
            runner.plan,
            self._config.engine.max_sequences,
            progress,
            adapters=runner.adapters if self._config.adapters else None,
            tokens=self._config.engine.max_step_tokens,
            states=runner.states,
            alone=self._config.tensor_parallel == 1,
        )
