"""Kernels whose programs start while the previous kernel still runs, and then wait for its end.

A kernel takes a microsecond or two to start on the whole device, and a decode step has hundreds of them.
Every kernel that is launched with `early_start` calls `after_previous` before it touches memory that another
kernel reads or writes. So when a kernel goes on after that call, all kernels before it have ended. Weights
are never written, so a kernel may read them earlier.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

SINCE: Final = 9, 0  # the lowest compute capability with this feature


@triton.jit
def after_previous(EARLY: tl.constexpr):
    """Let the next kernel start, and wait until the previous one has ended."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@cache
def early_start(device: torch.device) -> dict[str, Any]:
    """The launch options of a kernel that calls `after_previous`."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < SINCE:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}
