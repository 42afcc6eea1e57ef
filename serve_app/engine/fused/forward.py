"""The forward of a fused model, without the work that transformers does around its layers.

Transformers wraps every forward (defaults, captured outputs, masks), computes rotary factors
anew, and normalises in six operations. On a CPU, this extra work is a tenth of a decode step. `FusedForward`
gives the same result in a handful of operations. Depends on neither batches nor caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from serve_app.engine.fused.families import Family
from serve_app.engine.fused.layer import DecoderStack, LayerKernels, norm_of
from serve_app.engine.fused.rotary import Positions
from serve_app.engine.model.forward import current, joined_line
from serve_app.engine.torch_cpu import few_threads

# (states [T, N] float32, which it may change; positions [T]; wanted rows [R], None: all) -> [R, N]
Decode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class Decoder:
    """The part between embedding and head: rotary factors, layers and the last norm."""

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        positions: Positions,
        stack: DecoderStack,
        kernels: LayerKernels,
    ) -> None:
        self._positions, self._stack, self._kernels = positions, stack, kernels
        decoder: Any = model.get_decoder()
        self._norm = norm_of(decoder.norm, family)

    def __call__(
        self, states: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """As `Decode`."""
        with few_threads(positions.device, states.numel()):
            factors = self._positions.at(positions, max(current().context.lens))
        line = joined_line()
        if line is not None:
            states = line.enter(states)
        last = line is None or line.is_last
        states, pending = self._stack.run(states, factors, rows if last else None)
        if line is not None and not last:
            if pending is not None:
                self._kernels.add_norm(states, pending, None)
            line.leave(states)
            states, pending = states[: 0 if rows is None else len(rows)], None  # which nothing reads
        return self._kernels.add_norm(states, pending, self._norm)


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The part of transformers' output that a runner reads."""

    logits: torch.Tensor  # [1, R, V]


class FusedForward:
    """Stands in for `model.forward`, with the arguments that a runner passes."""

    def __init__(self, model: PreTrainedModel, family: Family, decode: Decode) -> None:
        """The output of `decode` goes into the model's head."""
        decoder: Any = model.get_decoder()
        config = model.config.get_text_config()
        self._embedding = decoder.embed_tokens  # called as a module: prompt tables hook into it
        self._head: Any = model.get_output_embeddings()
        self._embedded, self._scale = family.embedded(config), family.logits(config)
        softcap = None if family.logits_softcap is None else getattr(config, family.logits_softcap)
        self._softcap: float | None = softcap
        self.decode = decode

    def __call__(
        self,
        input_ids: torch.Tensor,  # [1, T] int64
        position_ids: torch.Tensor,  # [1, T] int64
        logits_to_keep: torch.Tensor | None = None,  # [R] int64, rows of T; None: all
        use_cache: bool = False,  # the step's context has the cache
    ) -> ForwardOutput:
        with few_threads(input_ids.device, input_ids.numel() * self._embedding.embedding_dim):
            states = self._embedding(input_ids)[0].to(torch.float32, copy=True)
            if self._embedded != 1:
                states *= self._embedded
        logits = self._head(self.decode(states, position_ids[0], logits_to_keep))
        if self._scale != 1:
            logits = logits * self._scale
        if self._softcap:
            logits = (logits / self._softcap).tanh() * self._softcap
        return ForwardOutput(logits[None])
