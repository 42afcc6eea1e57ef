"""Makes a transformers model fast on a CPU: its decoder layers become one fused stack, with packed linears.

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
from serve_app.engine.cpu.delta import DeltaLayer
from serve_app.engine.cpu.packing import pack_model, packed_block
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.fused.families import Family
from serve_app.engine.fused.fuse import fuse
from serve_app.engine.fused.layer import AttentionCall
from serve_app.engine.fused.mixture import Mixture
from serve_app.engine.fused.rotary import Rotary
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.model.forward import ATTENTION_NAME
from serve_app.engine.model.latents import connect_latents
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import Packer
from serve_app.engine.weights.packed_linear import Pack, PackedLinear
from serve_app.engine.weights.plain import PLAIN

log = logging.getLogger(__name__)


def accelerate_cpu(
    model: PreTrainedModel,
    dtype: torch.dtype,
    *,
    fused: bool = True,
    weights: WeightFormat = PLAIN,
    progress: Callable[[str], None] = log.info,
) -> PreTrainedModel:
    """Make `model` fast on this CPU, in place, as far as that is possible; logs what it did.

    To be called once, after loading and before anything else keeps a reference to the model's linears.
    `dtype` is the type of its weights. The model's forward keeps its signature; it runs only inside
    `forward.active`. Raises UnsupportedModel for the reasons of a dry run, and also if the format `weights`
    cannot be used for all of the model's weights.
    """
    connect_latents(model, ATTENTION_NAME)  # of all layers, before any is packed
    pack = Packer(model, weights, "cpu")
    kernels = native()
    count = 0
    if fused and kernels is not None:
        count = fuse(model, NativeParts(kernels, weights), pack, None if weights is PLAIN else progress)
    packed = 0 if count else pack_model(model, weights, pack)
    pack.report(dtype, progress)
    log.info("CPU: %d fused layers, %d other packed modules, %s", count, packed, dtype)
    return model


class NativeParts:
    """The native functions in the form that fused layers use."""

    dtypes: Final = frozenset(TYPES)
    states: Final = True
    mixtures: Final = True

    def __init__(self, kernels: Native, weights: WeightFormat) -> None:
        self.kernels, self._weights = kernels, weights

    def make_layer(
        self,
        layer: Any,
        family: Family,
        call: AttentionCall | None,
        rotary: Rotary,
        pack: Pack,
        mixture: Mixture | None,
    ) -> FusedLayer | DeltaLayer:
        if call is None:
            return DeltaLayer(layer, family, self.kernels, pack, mixture)
        return FusedLayer(layer, family, call, rotary, self.kernels, pack, mixture)

    def make_mixture(self, block: nn.Module, config: Any, pack: Pack) -> nn.Module:
        made = packed_block(block, config, self._weights, pack)
        return NativeBlock.of(made, config, self.kernels) or made

    def make_stack(self, layers: Iterable[nn.Module]) -> FusedStack:
        return FusedStack(layers, self.kernels)

    def make_head(self, head: nn.Linear, pack: Pack) -> PackedLinear:
        made = pack(head)
        made.wide_output = True
        return made

    def make_backend(self) -> CpuAttention:
        return CpuAttention()
