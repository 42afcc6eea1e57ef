"""What `attention: auto` is on a GPU: Triton's kernels, once a trial on it found nothing wrong with them.

If only the kernels for adapters, experts or states are wrong, the others serve, and these parts run in plain
torch.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.cuda.trial.question import ask_about
from serve_app.engine.cuda.trial.verdict import fault_of


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs on a GPU."""

    attention: str  # `triton`, or `cuda`: plain torch, which is slower
    adapters: bool  # whether the kernels add the products of adapters, too
    experts: bool = True  # and whether they compute experts
    states: bool = True  # and functions with a state


def choose_kernels(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: ModelConfig,
    progress: Callable[[str], None],
) -> Choice:
    """The choice that a trial leads to; `progress` gets the reason. It takes minutes on the first start.

    `module`: loaded, still with transformers' own layers.
    """
    if importlib.util.find_spec("triton") is None:
        progress("attention in plain torch, which is slower: the package triton is not installed")
        return Choice("cuda", adapters=False)
    progress("trying the GPU's kernels in a process of its own (the first start compiles them)")
    began = time.monotonic()
    engine = config.engine
    question = ask_about(
        module,
        dtype=dtype,
        device=device,
        block_size=engine.block_size,
        codes=engine.kv_cache_dtype,
        rank=engine.max_adapter_rank if engine.max_adapters else 0,
        quantization=config.quantization,
    )
    fault = fault_of(question)
    parts: dict[str, Any] = {"experts": (), "states": False, "rank": 0}
    left_out = set()
    for part, nothing in parts.items():
        if fault is not None and getattr(question, part):
            name = "adapters" if part == "rank" else part
            progress(f"a trial of the GPU's kernels failed ({fault}); trying them without {name}")
            question = replace(question, **{part: nothing})
            left_out.add(part)
            fault = fault_of(question)
    seconds = time.monotonic() - began
    if fault is None:
        progress(f"the GPU's kernels give plain torch's results ({seconds:.1f} s)")
        kernels = {part: part not in left_out for part in ("experts", "states")}
        return Choice("triton", adapters=question.rank > 0, **kernels)
    progress(
        f"attention in plain torch, which is slower: a trial of the GPU's kernels failed after "
        f"{seconds:.1f} s ({fault}); `attention: triton` uses them all the same"
    )
    return Choice("cuda", adapters=False)
