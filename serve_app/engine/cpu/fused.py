"""Makes a transformers model fast on a CPU: its decoder layers become one fused stack, its linears packed.

`engine/fused` decides which layers can be fused, and checks the results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.cpu.decoder import FusedLayer, FusedStack
from serve_app.engine.fused.checks import run_model
from serve_app.engine.fused.fuse import fuse_forward, fuse_layers
from serve_app.engine.fused.layer import AttentionCall
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.linear.packable import packable_linears
from serve_app.engine.linear.packed import Pack, PackedLinear, pack_linears
from serve_app.engine.linear.quantized import packer, sensitive_linears
from serve_app.engine.model.forward import UnsupportedModel

log = logging.getLogger(__name__)


def accelerate_cpu(
    model: PreTrainedModel,
    dtype: torch.dtype,
    *,
    fuse: bool = True,
    quantization: Quantization | None = None,
    progress: Callable[[str], None] = log.info,
) -> PreTrainedModel:
    """Make `model` fast on this CPU, in place, as far as that is possible; logs what it did.

    Call it once, after loading and before anything else holds on to the model's
    linears. `dtype` is the type of its weights. The model's forward keeps its signature;
    it runs only inside `forward.active`. Raises UnsupportedModel, as a dry run does, and for a
    `quantization` that does not reach the model's weights.
    """
    head = model.get_output_embeddings()
    pack = packer(quantization, sensitive_linears(model))
    if quantization is not None:
        check_quantizable(model, quantization)
    kernels = native()
    parts = NativeParts(kernels) if fuse and kernels is not None else None
    fused = 0 if parts is None else fuse_layers(model, parts, pack, progress if quantization else None)
    packed = pack_linears(model, packable_linears(model, lambda: run_model(model)), pack)
    if quantization is not None and not packed:
        raise UnsupportedModel(
            f"quantization {quantization} cannot be applied: the model reads its own weights"
        )
    if isinstance(packed_head := model.get_output_embeddings(), PackedLinear) and packed_head is not head:
        packed_head.wide_output = True
    if parts is not None and fused:
        fuse_forward(model, parts)
    log.info("CPU: %d fused layers, %d packed linears, %s", fused, packed, dtype)
    return model


def check_quantizable(model: PreTrainedModel, kind: Quantization) -> None:
    """Raises UnsupportedModel for weights that are not those of linear layers, such as experts."""
    for place, module in model.named_modules():
        for name, parameter in module.named_parameters(place, recurse=False):
            if parameter.dim() < 2 or (parameter.dim() == 2 and isinstance(module, nn.Linear | nn.Embedding)):
                continue
            kind_of = f"a tensor of shape {tuple(parameter.shape)}, as experts are"
            if parameter.dim() == 2:
                kind_of = f"the weight of a {type(module).__name__}"
            raise UnsupportedModel(
                f"quantization {kind} is for weights of linear layers; {name} is {kind_of}. "
                "Serve the model without `quantization`"
            )


class NativeParts:
    """The native functions as fused layers use them."""

    dtypes: Final = frozenset(TYPES)
    head: Final = PackedLinear

    def __init__(self, kernels: Native) -> None:
        self.kernels = kernels

    def make_layer(self, layer: Any, call: AttentionCall, pack: Pack | None = None) -> FusedLayer:
        return FusedLayer(layer, call, self.kernels, pack or PackedLinear.of)

    def make_stack(self, layers: Iterable[nn.Module]) -> FusedStack:
        return FusedStack(layers, self.kernels)

    def make_backend(self) -> CpuAttention:
        return CpuAttention()
