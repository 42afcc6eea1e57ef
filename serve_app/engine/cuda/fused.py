"""Makes a transformers model fast on a GPU: its decoder layers become one fused stack.

`engine/fused` decides which layers can be fused, and checks the results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.codes.tensor import CodedTensor
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.experts.grouped import group_experts, has_grouped
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.cuda.packing import has_codes, pack_model, pack_parts, report_experts
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.checks import FirstLayers
from serve_app.engine.fused.families import Family
from serve_app.engine.fused.fuse import fuse
from serve_app.engine.fused.layer import AttentionCall, AttentionLayer, DecoderStack
from serve_app.engine.fused.mixture import Mixture, with_its_weights
from serve_app.engine.fused.rotary import Rotary
from serve_app.engine.model.forward import current
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import Packer
from serve_app.engine.weights.packed_linear import Pack
from serve_app.engine.weights.plain import PLAIN


class TritonLayer(AttentionLayer[TritonKernels]):
    """A decoder layer on the Triton kernels. The activations between its linears are of the weights' type."""

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D]."""
        step = current()
        if not isinstance(step.backend, TritonAttention):
            return self._attend_by_backend(qkv, cos, sin)
        query = self._rotate_and_keep(step.backend, qkv, cos, sin)
        return self._attend_cached(step.backend, query, step.context)

    def _attend_last(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [R, H, D], of the wanted rows."""
        step = current()
        if not isinstance(step.backend, TritonAttention) or step.context.wanted_start is None:
            return super()._attend_last(qkv, cos, sin, rows)
        query = self._rotate_and_keep(step.backend, qkv, cos, sin)
        return self._attend_cached(step.backend, query.index_select(0, rows), step.context.of_wanted())

    def _rotate_and_keep(
        self, backend: TritonAttention, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Returns the queries [T, H, D], and writes keys and values to the cache."""
        pools, slots = backend.pools(self.layer_idx), current().context.slots
        norms = self._norms
        if norms is not None and self._whole:
            of_queries, of_keys = norms
            self._kernels.normalise_part(qkv, 0, of_queries, self._eps_head)
            self._kernels.normalise_part(qkv, len(of_queries), of_keys, self._eps_head)
            norms = None
        return self._kernels.rope_and_cache(qkv, cos, sin, norms, self._eps_head, pools, slots)

    def _attend_cached(
        self, backend: TritonAttention, query: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """[T, H, D] -> [T, H, D]: attention with the keys and values in the cache."""
        call = self._call
        return backend.attend(
            self.layer_idx,
            query,
            context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )


log = logging.getLogger(__name__)


def accelerate_cuda(
    model: PreTrainedModel,
    dtype: torch.dtype,
    weights: WeightFormat = PLAIN,
    *,
    experts: bool = True,
    progress: Callable[[str], None] = log.info,
) -> PreTrainedModel:
    """Make `model`, whose weights are of `dtype`, fast on its GPU, in place, as far as that is possible.

    Call it once, after loading. The model's forward keeps its signature; it runs only inside
    `forward.active`. Weights are copied layer by layer, so that they lie side by side; memory must have room
    for the model and one more layer. `experts`: kernels also compute experts. This also works on a CPU, in
    Triton's interpreter.

    Weights that are codes already stay codes if there is a product for them. Raises UnsupportedModel if the
    format `weights` cannot be used for the model.
    """
    pack, quantised = Packer(model, weights, "triton"), weights is not PLAIN
    parts = TritonParts(dtype, weights, experts=experts)
    count = fuse(model, parts, pack, progress if quantised else None)
    if not count and (quantised or has_codes(model)):
        log.info("GPU: %d modules in codes, %s", pack_model(model, weights, pack, experts=experts), dtype)
    else:
        grouped = not count and experts and _group_experts(model)
        log.info("GPU: %d fused layers, %s%s", count, dtype, ", experts by one product" if grouped else "")
    pack.report(dtype, progress)
    report_experts(model, progress)
    return model


def _group_experts(model: PreTrainedModel) -> bool:
    """Let kernels compute the experts of `model`, if the logits of its first layers stay the same."""
    if not any(map(has_grouped, model.modules())):
        return False
    first = FirstLayers(model)
    undo = group_experts(model)
    wrong = first.wrong(TritonAttention(), 0.0)
    if wrong is not None and undo is not None:
        log.error("the experts of %s are left to transformers: %s", type(model).__name__, wrong)
        undo()
    return wrong is None


class TritonParts:
    """The Triton kernels in the form that fused layers use."""

    dtypes: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})
    states: Final = False

    def __init__(self, dtype: torch.dtype, weights: WeightFormat = PLAIN, *, experts: bool = True) -> None:
        """`experts`: kernels compute experts too."""
        self.kernels, self._weights, self.mixtures = TritonKernels(dtype), weights, experts

    def make_layer(
        self,
        layer: Any,
        family: Family,
        call: AttentionCall | None,
        rotary: Rotary,
        pack: Pack,
        mixture: Mixture | None,
    ) -> TritonLayer:
        if call is None:
            raise ValueError("there are no fused layers with a state on a GPU")
        return TritonLayer(layer, family, call, rotary, self.kernels, pack, mixture)

    def make_mixture(self, block: nn.Module, config: Any, pack: Pack) -> nn.Module:
        made = with_its_weights(block)
        if self._weights is not PLAIN or has_codes(made):
            row = next(made.parameters()).new_zeros(1, 1, config.hidden_size)
            pack_parts(made, config, partial(made, row), self._weights, pack, experts=True)
        else:
            group_experts(made)
        return made

    def make_stack(self, layers: Iterable[nn.Module]) -> DecoderStack:
        return DecoderStack(layers)

    def make_head(self, head: nn.Linear, pack: Pack) -> nn.Module:
        coded = self._weights is not PLAIN or isinstance(head.weight, CodedTensor)
        return pack(head) if coded else head  # which shares the memory of an embedding

    def make_backend(self) -> TritonAttention:
        return TritonAttention()
