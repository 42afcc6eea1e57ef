"""Estimates the memory that a model takes beside its weights, from the shapes of its modules alone.

Whatever depends on values is determined when the model starts, which measures steps and compares fast layers
with the model's own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.cpu.packing import check_format
from serve_app.engine.fused.fuse import known
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.model.dry_run import Layers, learn_layers
from serve_app.engine.model.forward import check_codes, connect_attention
from serve_app.engine.model.indexers import connect_indexers
from serve_app.engine.model.memory import (
    CPU_CACHE_CAP,
    CPU_SHARE,
    CUDA_SHARE,
    CachePlan,
    CacheTooSmall,
    free_memory,
    plan_cache,
)
from serve_app.engine.model.stages import connect_stage, stage_of
from serve_app.engine.model.stateful import connect_states, wants_positions
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import FORMATS

_HIDDEN_COPIES: Final = 6  # rows of the hidden size that a layer holds at once, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The layers of a model as the engine runs them."""

    family: str | None  # whose fused layers they are; None: transformers' own
    dtype: torch.dtype
    layers: Layers | None  # None: known only at the start
    step_bytes: int  # of the largest step on a GPU, about

    @classmethod
    def of(cls, module: PreTrainedModel, config: ModelConfig) -> Estimate:
        """`module`: on the meta device. Raises UnsupportedModel for a model that the engine cannot run."""
        on_cpu = device_memory(config.device)[0] == "cpu"
        text = module.config.get_text_config()
        connect_stage(module, int(text.vocab_size))
        family = known(module, frozenset(TYPES), states=on_cpu)
        module.set_experts_implementation("batched_mm")  # the usual one takes bfloat16 alone on this device
        if family is None and on_cpu and config.quantization != "none":
            _check_format(module, FORMATS[config.quantization])
        layers = _layers(module, text)
        check_codes(() if layers is None else layers.attention, codes=config.engine.kv_cache_dtype != "auto")
        return cls(
            family=None if family is None else family.name,
            dtype=module.dtype,
            layers=layers,
            step_bytes=_step_bytes(text, config, module.dtype),
        )

    @property
    def token_bytes(self) -> int | None:
        """Bytes of one token in the cache, in the weights' type."""
        if self.layers is None:
            return None
        return sum(spec.bytes_per_token(self.dtype) for spec in self.layers.attention)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states; 0 if the model has no states, or if their size is known only at the
        start."""
        return 0 if self.layers is None else sum(spec.num_bytes for spec in self.layers.states)

    def plan(
        self, config: ModelConfig, *, window: int, weight_bytes: int, memory: int, on_cpu: bool
    ) -> CachePlan | None:
        """The cache that fits in `memory` bytes: the free memory for a CPU, or all of a GPU's memory.

        None: the size is known only at the start. Raises CacheTooSmall if too small a cache fits, or if not
        even the weights fit.
        """
        room, beside = (memory, 0) if on_cpu else (int(memory * CUDA_SHARE), self.step_bytes)
        free = room - weight_bytes - beside
        if free <= 0:
            raise weights_too_large(weight_bytes, memory, beside)
        if self.layers is None:
            return None
        return plan_cache(
            self.layers.attention,
            self.layers.states,
            dtype=self.dtype if config.engine.kv_cache_dtype == "auto" else torch.int8,
            config=config.engine,
            context_window=window,
            free_bytes=free,
            share=CPU_SHARE if on_cpu else 1.0,
            cap=CPU_CACHE_CAP if on_cpu else None,
        )


def weights_too_large(weight_bytes: int, memory: int, beside: int = 0) -> CacheTooSmall:
    """The error for weights that do not fit; `beside`: the bytes that the largest step needs."""
    need, have, steps = (f"{size / 2**30:,.1f} GiB" for size in (weight_bytes, memory, beside))
    reason = f" beside steps, which take about {steps}" if beside else ""
    return CacheTooSmall(f"{need} of weights do not fit into {have}{reason}")


def device_memory(wanted: str) -> tuple[str, int | None]:
    """The kind of device that `wanted` stands for on this machine, cpu or cuda, and its memory in bytes.

    For a CPU, that is the free memory; for a GPU, all of its memory; None: this machine has no GPU.
    """
    has_cuda = torch.cuda.is_available()
    if wanted == "cpu" or (wanted == "auto" and not has_cuda):
        return "cpu", free_memory(torch.device("cpu"))
    return "cuda", torch.cuda.get_device_properties(0).total_memory if has_cuda else None


def _layers(module: PreTrainedModel, text: Any) -> Layers | None:
    """What the layers need in the cache, from shapes alone; None if it depends on the values of tensors."""

    def forward(tokens: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        places = {"position_ids": positions[None]} if takes else {}
        logits: torch.Tensor = module(input_ids=tokens[None], **places, use_cache=False).logits[0]
        return logits

    takes = wants_positions(module)
    connect_states(module)
    connect_indexers(module)
    connect_attention(module)
    try:
        name, device = type(module).__name__, torch.device("meta")
        return learn_layers(forward, name=name, config=text, device=device, stage=stage_of(module))
    except (RuntimeError, NotImplementedError, TypeError):  # it reads numbers, which the meta device lacks
        return None


def _check_format(module: PreTrainedModel, weights: WeightFormat) -> None:
    with suppress(RuntimeError, NotImplementedError, TypeError):  # it reads numbers: the start will say
        check_format(module, weights)


def _step_bytes(text: Any, config: ModelConfig, dtype: torch.dtype) -> int:
    """The approximate bytes of a GPU's largest step: logits in two types, and rows of one layer."""
    hidden = int(getattr(text, "hidden_size", 0))
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    row: int = text.vocab_size * (dtype.itemsize + torch.float32.itemsize)
    row += (_HIDDEN_COPIES * hidden + 3 * inner) * dtype.itemsize
    return config.engine.max_step_tokens * row
