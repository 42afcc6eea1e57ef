"""What `attention: auto` is on a GPU: Triton's kernels, once a trial found nothing wrong with them there."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.cuda.trial.question import ask_about
from serve_app.engine.cuda.trial.verdict import fault_of


def choose_attention(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: ModelConfig,
    progress: Callable[[str], None],
) -> str:
    """`triton`, or `cuda`: plain torch, which is slower. `progress` is told why. Minutes on the first start.

    `module`: loaded, its layers still transformers' own.
    """
    if importlib.util.find_spec("triton") is None:
        progress("attention in plain torch, which is slower: the package triton is not installed")
        return "cuda"
    progress("trying the GPU's kernels in a process of its own (the first start compiles them)")
    began = time.monotonic()
    question = ask_about(
        module,
        dtype=dtype,
        device=device,
        block_size=config.engine.block_size,
        codes=config.engine.kv_cache_dtype == "int8",
    )
    fault = fault_of(question)
    seconds = time.monotonic() - began
    if fault is None:
        progress(f"the GPU's kernels give plain torch's results ({seconds:.1f} s)")
        return "triton"
    progress(
        f"attention in plain torch, which is slower: a trial of the GPU's kernels failed after "
        f"{seconds:.1f} s ({fault}); `attention: triton` uses them all the same"
    )
    return "cuda"
