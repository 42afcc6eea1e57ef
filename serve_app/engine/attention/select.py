"""The attention backend for a device, by name."""

from __future__ import annotations

import os
from typing import Final

import torch

from serve_app.engine.attention import AttentionBackend

# Device -> what `auto` is on it. For a GPU, `assemble` asks a trial whether it may be `triton`.
USUAL: Final = {"cpu": "cpu", "cuda": "cuda"}


def resolve(name: str, device: torch.device) -> str:
    """Resolves `auto` to the name of the backend for `device`; any other name is returned unchanged."""
    return USUAL.get(device.type, "cpu") if name == "auto" else name


def make_backend(name: str, device: torch.device) -> AttentionBackend:
    """`reference`, `cpu`, `cuda`, `triton`, or `auto`: the one for `device`. Raises ValueError for others.

    `cuda` also runs on a CPU, for comparison; `cpu` needs the tensors on the CPU. `triton` needs a CUDA
    device, or Triton's interpreter.
    """
    match resolve(name, device):
        case "reference":
            from serve_app.engine.attention.reference import ReferenceAttention

            return ReferenceAttention()
        case "cuda":
            from serve_app.engine.attention.torch_gpu import TorchGpuAttention

            return TorchGpuAttention()
        case "triton":
            return _triton(device)
        case "cpu" if device.type == "cpu":
            from serve_app.engine.attention.cpu import CpuAttention

            return CpuAttention()
        case "cpu":
            raise ValueError(f"attention cpu needs a model on the CPU, this one is on {device}")
    raise ValueError(f"unknown attention backend {name!r}: choose auto, reference, cpu, cuda or triton")


def _triton(device: torch.device) -> AttentionBackend:
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"attention triton needs a model on a GPU, this one is on {device}")
    try:
        from serve_app.engine.attention.triton.backend import TritonAttention
    except ModuleNotFoundError as error:
        raise ValueError("attention triton needs the package triton: pip install triton") from error
    return TritonAttention()
