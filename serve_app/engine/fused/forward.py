"""The forward of a fused model, without what transformers does around its layers.

Transformers wraps every forward (defaults, captured outputs, masks), computes rotary factors
anew, and normalises in six operations. On a CPU this is a tenth of a decode step. `FusedForward`
gives the same result in a handful of operations, for models known to consist of embedding,
layers, norm and head alone. Knows neither batches nor caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from serve_app.engine.fused.layer import DecoderStack, LayerKernels, norm_of
from serve_app.engine.model.forward import current
from serve_app.engine.torch_cpu import few_threads

MODELS: Final = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Kinds of rotary positions whose factors depend on the position alone.
FIXED: Final = frozenset({"default", "linear", "llama3", "yarn"})
FIRST_POSITIONS: Final = 4096  # in a table of rotary factors; it doubles when they are not enough

# (states [T, N] float32, which it may change; positions [T]; wanted rows [R], None: all) -> [R, N]
Decode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class RotaryTable:
    """Rotary factors by position, as the model's own module gives them."""

    def __init__(self, rotary: Any, like: torch.Tensor) -> None:
        """`like`: the model's embeddings. The module rounds its factors to their type, on their device."""
        self._rotary = rotary
        self._like = like.new_empty(0)
        self._cos = self._sin = torch.empty(0, 0)

    def at(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, both [T, D / 2] float32, of positions [T], all of them below `end`."""
        if end > len(self._cos):
            length = FIRST_POSITIONS
            while length < end:
                length *= 2
            # cos, sin: [1, length, D]
            factors = self._rotary(self._like, torch.arange(length, device=self._like.device)[None])
            self._cos, self._sin = (
                factor[0, :, : factor.shape[-1] // 2].float().contiguous() for factor in factors
            )
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


class Decoder:
    """The part between embedding and head: rotary factors, layers and the last norm."""

    def __init__(self, model: PreTrainedModel, stack: DecoderStack, kernels: LayerKernels) -> None:
        decoder: Any = model.get_decoder()
        self._rotary = RotaryTable(decoder.rotary_emb, decoder.embed_tokens.weight)
        self._stack, self._kernels = stack, kernels
        self._norm, self._eps = norm_of(decoder.norm)

    def __call__(
        self, states: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """As `Decode`."""
        with few_threads(positions.device, states.numel()):
            cos, sin = self._rotary.at(positions, max(current().context.lens))
        states, delta = self._stack.run(states, cos, sin, rows)
        return self._kernels.add_rmsnorm(states, delta, self._norm, self._eps)


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The part of transformers' output that a runner reads."""

    logits: torch.Tensor  # [1, R, V]


class FusedForward:
    """Stands in for `model.forward`, with the arguments that a runner passes."""

    def __init__(self, model: PreTrainedModel, decode: Decode) -> None:
        decoder: Any = model.get_decoder()
        self._embedding = decoder.embed_tokens  # called as a module: prompt tables hook into it
        self._head: Any = model.get_output_embeddings()
        self.decode = decode

    @classmethod
    def of(cls, model: PreTrainedModel, kernels: LayerKernels) -> FusedForward | None:
        """The forward of a model whose layers are fused already; None where its result would differ."""
        decoder: Any = model.get_decoder()
        if type(model) not in MODELS or getattr(decoder.rotary_emb, "rope_type", None) not in FIXED:
            return None
        return cls(model, Decoder(model, decoder.layers[0], kernels))

    def __call__(
        self,
        input_ids: torch.Tensor,  # [1, T] int64
        position_ids: torch.Tensor,  # [1, T] int64
        logits_to_keep: torch.Tensor | None = None,  # [R] int64, rows of T; None: all
        use_cache: bool = False,  # the step's context has the cache
    ) -> ForwardOutput:
        with few_threads(input_ids.device, input_ids.numel() * self._embedding.embedding_dim):
            states = self._embedding(input_ids)[0].to(torch.float32, copy=True)
        return ForwardOutput(self._head(self.decode(states, position_ids[0], logits_to_keep))[None])
