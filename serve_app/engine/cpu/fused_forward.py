"""The forward of a fused model, without what transformers does around its layers.

Transformers wraps every forward (defaults, captured outputs, masks), computes rotary factors
anew, and normalises in six operations. On a CPU this is a tenth of a decode step. `FusedForward`
gives the same result in a handful of operations, for models known to consist of embedding,
layers, norm and head alone. Knows neither batches nor caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from serve_app.engine.cpu.decoder import FusedStack, norm_of
from serve_app.engine.kernels.native import Native
from serve_app.engine.linear.packed import PackedLinear
from serve_app.engine.model.forward import current

MODELS: Final = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Kinds of rotary positions whose factors depend on nothing but the position.
FIXED: Final = frozenset({"default", "linear", "llama3", "yarn"})
FIRST_POSITIONS: Final = 4096  # in a table of rotary factors; it doubles when they are not enough


class RotaryTable:
    """Rotary factors by position, as the model's own module gives them."""

    def __init__(self, rotary: Any, dtype: torch.dtype) -> None:
        """`dtype`: of the model's embeddings, to which the module rounds its factors."""
        self._rotary = rotary
        self._like = torch.empty(0, dtype=dtype)
        self._cos = self._sin = torch.empty(0, 0)

    def at(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, both [T, D / 2] float32, of positions [T], all of them below `end`."""
        if end > len(self._cos):
            length = FIRST_POSITIONS
            while length < end:
                length *= 2
            factors = self._rotary(self._like, torch.arange(length)[None])  # cos, sin: [1, length, D]
            self._cos, self._sin = (
                factor[0, :, : factor.shape[-1] // 2].float().contiguous() for factor in factors
            )
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The part of transformers' output that a runner reads."""

    logits: torch.Tensor  # [1, R, V]


class FusedForward:
    """Stands in for `model.forward`, with the arguments that a runner passes."""

    def __init__(
        self, model: PreTrainedModel, stack: FusedStack, head: PackedLinear, kernels: Native
    ) -> None:
        decoder: Any = model.get_decoder()
        self._embedding = decoder.embed_tokens  # called as a module: prompt tables hook into it
        self._rotary = RotaryTable(decoder.rotary_emb, decoder.embed_tokens.weight.dtype)
        self._stack, self._head, self._kernels = stack, head, kernels
        self._norm, self._eps = norm_of(decoder.norm)

    @classmethod
    def of(cls, model: PreTrainedModel, kernels: Native) -> FusedForward | None:
        """The forward of a model whose layers are fused already; None where its result would differ."""
        decoder: Any = model.get_decoder()
        head: Any = model.get_output_embeddings()
        if type(model) not in MODELS or getattr(decoder.rotary_emb, "rope_type", None) not in FIXED:
            return None
        stack = decoder.layers[0]
        if not isinstance(stack, FusedStack) or not isinstance(head, PackedLinear):
            return None
        return cls(model, stack, head, kernels)

    def __call__(
        self,
        input_ids: torch.Tensor,  # [1, T] int64
        position_ids: torch.Tensor,  # [1, T] int64
        logits_to_keep: torch.Tensor | None = None,  # [R] int64, rows of T; None: all
        use_cache: bool = False,  # the step's context has the cache
    ) -> ForwardOutput:
        cos, sin = self._rotary.at(position_ids[0], max(current().context.lens))
        states = self._embedding(input_ids)[0].to(torch.float32, copy=True)
        self._stack.run(states, cos, sin)
        kept = states if logits_to_keep is None else states.index_select(0, logits_to_keep)
        normed = self._kernels.add_rmsnorm(kept, None, self._norm, self._eps)
        return ForwardOutput(self._head(normed)[None])
