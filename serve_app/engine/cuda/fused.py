"""Makes a transformers model fast on a GPU: its decoder layers become one fused stack.

`engine/fused` decides which layers can be fused, and checks the results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.decoder import TritonLayer
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.fused.families import Family
from serve_app.engine.fused.fuse import fuse
from serve_app.engine.fused.layer import AttentionCall, DecoderStack
from serve_app.engine.fused.rotary import Rotary
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import packer
from serve_app.engine.weights.packed_linear import Pack
from serve_app.engine.weights.plain import PLAIN

log = logging.getLogger(__name__)


def accelerate_cuda(
    model: PreTrainedModel, dtype: torch.dtype, weights: WeightFormat = PLAIN
) -> PreTrainedModel:
    """Make `model`, whose weights are of `dtype`, fast on its GPU, in place, as far as that is possible.

    Call it once, after loading. The model's forward keeps its signature; it runs only inside
    `forward.active`. Weights that lie side by side are copied layer by layer, so one layer more than the
    model must fit in memory. Also on a CPU, in Triton's interpreter.
    """
    count = fuse(model, TritonParts(dtype), weights, packer(model, weights, "triton"))
    log.info("GPU: %d fused layers, %s", count, dtype)
    return model


class TritonParts:
    """The Triton kernels as fused layers use them."""

    dtypes: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})

    def __init__(self, dtype: torch.dtype) -> None:
        self.kernels = TritonKernels(dtype)

    def make_layer(
        self, layer: Any, family: Family, call: AttentionCall, rotary: Rotary, pack: Pack
    ) -> TritonLayer:
        return TritonLayer(layer, family, call, rotary, self.kernels, pack)

    def make_stack(self, layers: Iterable[nn.Module]) -> DecoderStack:
        return DecoderStack(layers)

    def make_head(self, head: nn.Linear, pack: Pack) -> nn.Module:
        return head  # transformers' own: it shares the memory of an embedding

    def make_backend(self) -> TritonAttention:
        return TritonAttention()
