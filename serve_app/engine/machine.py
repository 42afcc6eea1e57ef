"""The machine's resources for a model's process: threads, a share of a GPU, and native functions for CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import torch

from serve_app.config import ModelConfig
from serve_app.engine.kernels import native
from serve_app.engine.model.memory import keep_to_share
from serve_app.engine.waiting import waiting

STILL_S: Final = 5.0  # compiled kernels are loaded in a fraction of it


def use_machine(config: ModelConfig, ranks: int = 1) -> None:
    """Limit torch to this process's threads and part of a GPU; to be called before weights are loaded.

    `ranks`: those on this machine, which share its processor unless the settings name a number of threads.
    """
    torch.set_num_threads(config.threads or max(1, _usable_cpus() // ranks))
    if config.device != "cpu":
        keep_to_share(config.engine.gpu_share)


def _usable_cpus() -> int:
    """Cores that this process may run on; all cores if the system has no such limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(config: ModelConfig, progress: Callable[[str], None], ranks: int = 1) -> bool:
    """Set the threads and the part of a GPU, and build the CPU kernels; returns whether there are kernels.
    `ranks`: as of `use_machine`.

    With the kernels, bfloat16 weights are read at the full speed of memory on any CPU. So the choice of a
    dtype depends on whether there are kernels.
    """
    use_machine(config, ranks)
    if config.device == "cuda" or config.attention not in ("auto", "cpu"):
        return False
    progress("preparing the CPU kernels")
    with waiting(progress, "compiling the CPU kernels, or waiting for the processor", STILL_S):
        return native() is not None
