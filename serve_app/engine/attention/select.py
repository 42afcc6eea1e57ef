"""The attention backend for a device, by name."""

from __future__ import annotations

import torch

from serve_app.engine.attention import AttentionBackend


def make_backend(name: str, device: torch.device) -> AttentionBackend:
    """`reference`, `cpu`, `cuda`, or `auto`: the fast one of `device`. ValueError for any other name.

    `cuda` runs on a CPU too, for comparison; `cpu` needs the tensors on the CPU.
    """
    if name == "auto":
        name = "cuda" if device.type == "cuda" else "cpu"
    match name:
        case "reference":
            from serve_app.engine.attention.reference import ReferenceAttention

            return ReferenceAttention()
        case "cuda":
            from serve_app.engine.attention.cuda import CudaAttention

            return CudaAttention()
        case "cpu" if device.type == "cpu":
            from serve_app.engine.attention.cpu import CpuAttention

            return CpuAttention()
        case "cpu":
            raise ValueError(f"attention cpu needs a model on the CPU, this one is on {device}")
    raise ValueError(f"unknown attention backend {name!r}: choose auto, reference, cpu or cuda")
