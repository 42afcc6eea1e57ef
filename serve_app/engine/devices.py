"""The kind of device for a model: the one in the settings, or one that passed a trial on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.attention.select import make_backend, resolve
from serve_app.engine.cpu.device import CpuDevice
from serve_app.engine.device import Device, TorchDevice
from serve_app.engine.model.indexers import has_indexers
from serve_app.engine.waiting import waiting

TRIES_S: Final = 15.0


def choose_device(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: ModelConfig,
    progress: Callable[[str], None],
) -> Device:
    """The kind of device that is to run `module`, which is on `device` and still has transformers' own
    layers."""
    attention = resolve(config.attention, device)
    kernels = {"stacked": True, "experts": True, "states": True}
    if has_indexers(module) and device.type == "cuda":
        progress("attention in plain torch: an index chooses the tokens that each row sees")
        attention = "reference"
    elif config.attention == "auto" and device.type == "cuda":
        from serve_app.engine.cuda.trial.choose import choose_kernels

        with waiting(progress, "trying the GPU's kernels", TRIES_S):
            choice = choose_kernels(module, dtype=dtype, device=device, config=config, progress=progress)
        attention = choice.attention
        kernels = {"stacked": choice.adapters, "experts": choice.experts, "states": choice.states}
    backend = make_backend(attention, device)
    if attention == "cpu":
        return CpuDevice(backend)
    if attention == "triton":
        from serve_app.engine.cuda.device import TritonDevice

        return TritonDevice(backend, config, device, **kernels)
    return TorchDevice(backend)
