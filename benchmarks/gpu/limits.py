"""What a device can do at most, measured where the figures are: bf16 products and bytes a second."""

from __future__ import annotations

from typing import Final

import torch

from benchmarks.gpu.contender import synchronise
from benchmarks.limits import best_seconds
from benchmarks.roofline import Machine

SIDES: Final = {"cuda": (4096, 8192, 16_384), "cpu": (1024,)}  # of square matrices
BYTES: Final = {"cuda": 4 << 30, "cpu": 256 << 20}


@torch.inference_mode()
def measure(device: torch.device) -> Machine:
    """The best of several repeats of each: whatever else the device did can only lower them."""
    machine = Machine(max(_products(device, side) for side in SIDES[device.type]), _bandwidth(device))
    if device.type == "cuda":  # engines look at what is free, and torch keeps what it had
        torch.cuda.empty_cache()
    return machine


def _products(device: torch.device, side: int) -> float:
    """Floating-point operations a second; one multiply-add is two."""
    # Random numbers: zeros take less power, so a device computes them faster.
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))

    def run() -> None:
        torch.nn.functional.linear(left, right)
        synchronise(device)

    return 2 * side**3 / best_seconds(run)


def _bandwidth(device: torch.device) -> float:
    """Bytes a second of the better of reading an array and copying one, both ways counted."""
    source = torch.ones(BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)

    def read() -> None:
        source.sum()
        synchronise(device)

    def copy() -> None:
        target.copy_(source)
        synchronise(device)

    return max(source.nbytes / best_seconds(read), 2 * source.nbytes / best_seconds(copy))
