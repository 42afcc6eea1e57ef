"""Puts fused layers, and a fused forward, in the place of a model's own: all of them or none.

A layer is replaced only if its class is known to have the structure of a fused layer, and only
after the fused layer gave the original's results on a random batch. The forward around the layers
is replaced under the same conditions; otherwise transformers' own embedding, rotary factors and
norm run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.fused.checks import TOLERANCE, forward_error, known, layer_error, observe
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.fused.layer import AttentionCall, DecoderStack, LayerKernels
from serve_app.engine.model.forward import ATTENTION_NAME

log = logging.getLogger(__name__)

PROGRESS: Final = 8  # layers between two lines of progress


class Parts(Protocol):
    """What a device brings to a fused model."""

    @property
    def kernels(self) -> LayerKernels: ...

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """Of weights that it multiplies."""
        ...

    @property
    def head(self) -> type[nn.Module]:
        """Of heads that take what its kernels give."""
        ...

    def make_layer(self, layer: Any, call: AttentionCall, pack: Any = None) -> nn.Module:
        """The fused layer of `layer`. `pack` makes its linears; None: in the weights' own type."""
        ...

    def make_stack(self, layers: Iterable[nn.Module]) -> DecoderStack: ...

    def make_backend(self) -> AttentionBackend:
        """The attention that its layers are made for."""
        ...


def fuse_layers(
    model: PreTrainedModel,
    parts: Parts,
    pack: Any = None,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Replace the decoder layers by fused ones in place; returns how many: all of them or none.

    `pack` makes their linears. Results are compared with linears in the weights' own type.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(known(layer, parts.dtypes) for layer in layers):
        return 0
    model.set_attn_implementation(ATTENTION_NAME)
    with torch.inference_mode():
        # The first and the last layer, before any original is dropped. Packing checks every weight besides.
        for end in (0, -1):
            original: Any = layers[end]
            alone = parts.make_stack([parts.make_layer(original, observe(model, original))])
            error = layer_error(model, original, alone, parts.make_backend())
            if not error <= TOLERANCE[original.mlp.up_proj.weight.dtype]:
                log.error("a fused layer of %s is off by %.1g: not fused", type(model).__name__, error)
                return 0
        count = len(layers)
        # In place, so that an original is freed as soon as its weights are packed.
        for index, layer in enumerate(layers):
            layers[index] = parts.make_layer(layer, observe(model, layer), pack)
            if progress is not None and (index + 1) % PROGRESS == 0:
                progress(f"quantised {index + 1} of {count} layers")
        fused: Any = parts.make_stack(layers)
        model.get_decoder().layers = nn.ModuleList([fused])
    return count


def fuse_forward(model: PreTrainedModel, parts: Parts) -> None:
    """Replace the forward of a model of fused layers, if the new one gives the same on a random batch."""
    fused = FusedForward.of(model, parts.kernels, parts.head)
    if fused is None:
        return
    error = forward_error(model, fused, parts.make_backend())
    if not error <= TOLERANCE[model.dtype]:
        log.error("the fused forward of %s is off by %.1g: not used", type(model).__name__, error)
        return
    model.forward = fused
