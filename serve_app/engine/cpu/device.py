"""The `Device` for a CPU, used by `assemble`: fused layers on the native functions, packed linears."""

from __future__ import annotations

import time
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.device import Progress, TorchDevice
from serve_app.engine.waiting import waiting
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.plain import PLAIN

PACKS_S: Final = 10.0


class CpuDevice(TorchDevice):
    """As `Device`."""

    kind = "cpu"

    def accelerate(
        self, module: PreTrainedModel, dtype: torch.dtype, weights: WeightFormat, progress: Progress
    ) -> PreTrainedModel:
        began = time.monotonic()
        if weights is not PLAIN:
            progress(f"quantising the weights to {weights.name}")
        with waiting(progress, "packing the weights", PACKS_S):
            module = accelerate_cpu(module, dtype, weights=weights, progress=progress)
        progress(f"packed the weights in {time.monotonic() - began:.1f} s")
        return module
