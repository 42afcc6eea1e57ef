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
from serve_app.engine.fused.checks import FirstLayers, run_model
from serve_app.engine.fused.families import Family
from serve_app.engine.fused.fuse import fuse
from serve_app.engine.fused.layer import AttentionCall
from serve_app.engine.fused.rotary import Rotary
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import packer
from serve_app.engine.weights.packable import packable_linears
from serve_app.engine.weights.packed_linear import Pack, PackedLinear, pack_linears
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

    Call it once, after loading and before anything else holds on to the model's
    linears. `dtype` is the type of its weights. The model's forward keeps its signature;
    it runs only inside `forward.active`. Raises UnsupportedModel, as a dry run does, and for a
    format of `weights` that does not reach the model's weights.
    """
    pack = packer(model, weights, "cpu")
    if weights is not PLAIN:
        check_quantizable(model, weights)
    kernels = native()
    count = 0
    if fused and kernels is not None:
        count = fuse(model, NativeParts(kernels), weights, pack, None if weights is PLAIN else progress)
    packed = 0 if count else _pack(model, weights, pack)
    log.info("CPU: %d fused layers, %d other packed linears, %s", count, packed, dtype)
    return model


def _pack(model: PreTrainedModel, weights: WeightFormat, pack: Pack) -> int:
    """Pack the linears of a model whose layers stay transformers' own; returns how many: all that can be, or
    none."""
    first, linears = FirstLayers(model), packable_linears(model, lambda: run_model(model))
    originals: dict[nn.Module, nn.Linear] = {}

    def keep(*linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        made = pack(*linears, rows=rows)
        originals[made] = linears[0]
        return made

    with first.alone():
        count = pack_linears(model, linears, keep)
    head = model.get_output_embeddings()
    if isinstance(head, PackedLinear):
        head.wide_output = True
    wrong = first.wrong(CpuAttention(), weights.error)
    if wrong is not None:
        if weights is not PLAIN:
            raise UnsupportedModel(
                f"{type(model).__name__} in {weights.name} computes something else on this machine: {wrong}. "
                "Serve the model without `quantization`"
            )
        log.error("%s is not packed: %s", type(model).__name__, wrong)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if child in originals:
                    setattr(parent, name, originals[child])
        return 0
    originals.clear()
    if not count and weights is not PLAIN:
        raise UnsupportedModel(
            f"quantization {weights.name} cannot be applied: the model reads its own weights"
        )
    return count + pack_linears(model, linears, pack)


def check_quantizable(model: PreTrainedModel, weights: WeightFormat) -> None:
    """Raises UnsupportedModel for weights that are not those of linear layers, such as experts."""
    for place, module in model.named_modules():
        for name, parameter in module.named_parameters(place, recurse=False):
            if isinstance(module, nn.Conv1d):  # of a few numbers a channel
                continue
            if parameter.dim() < 2 or (parameter.dim() == 2 and isinstance(module, nn.Linear | nn.Embedding)):
                continue
            kind_of = f"a tensor of shape {tuple(parameter.shape)}, as experts are"
            if parameter.dim() == 2:
                kind_of = f"the weight of a {type(module).__name__}"
            raise UnsupportedModel(
                f"quantization {weights.name} is for weights of linear layers; {name} is {kind_of}. "
                "Serve the model without `quantization`"
            )


class NativeParts:
    """The native functions as fused layers use them."""

    dtypes: Final = frozenset(TYPES)

    def __init__(self, kernels: Native) -> None:
        self.kernels = kernels

    def make_layer(
        self, layer: Any, family: Family, call: AttentionCall, rotary: Rotary, pack: Pack
    ) -> FusedLayer:
        return FusedLayer(layer, family, call, rotary, self.kernels, pack)

    def make_stack(self, layers: Iterable[nn.Module]) -> FusedStack:
        return FusedStack(layers, self.kernels)

    def make_head(self, head: nn.Linear, pack: Pack) -> PackedLinear:
        made = pack(head)
        made.wide_output = True
        return made

    def make_backend(self) -> CpuAttention:
        return CpuAttention()
