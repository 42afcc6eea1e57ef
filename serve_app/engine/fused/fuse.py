"""Replaces a model's own layers and forward by fused ones: all of the layers or none.

Only models of a declared family are fused, and only if the first layers, once fused, give the original
logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.fused.checks import FirstLayers
from serve_app.engine.fused.families import Family, family_of
from serve_app.engine.fused.forward import Decoder, FusedForward
from serve_app.engine.fused.layer import AttentionCall, DecoderStack, LayerKernels
from serve_app.engine.fused.mixture import Mixture
from serve_app.engine.fused.rotary import Positions, Rotary
from serve_app.engine.model.stages import stage_of
from serve_app.engine.weights.formats import Packer
from serve_app.engine.weights.packed_linear import Pack

log = logging.getLogger(__name__)

ACTIVATIONS: Final = (SiLUActivation, nn.SiLU, GELUTanh)
PROGRESS: Final = 8  # layers between two lines of progress


class Parts(Protocol):
    """The parts of a fused model that a device provides."""

    @property
    def kernels(self) -> LayerKernels: ...

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types of weights that the device's linears can multiply."""
        ...

    @property
    def states(self) -> bool:
        """Whether there are layers with a state."""
        ...

    @property
    def mixtures(self) -> bool:
        """Whether there are layers with experts."""
        ...

    def make_layer(
        self,
        layer: Any,
        family: Family,
        call: AttentionCall | None,
        rotary: Rotary,
        pack: Pack,
        mixture: Mixture | None,
    ) -> nn.Module:
        """The fused layer that replaces `layer`, with linears made by `pack`. `call`: None if it does not
        attend. `mixture`: None if its MLP has no experts."""
        ...

    def make_mixture(self, block: nn.Module, config: Any, pack: Pack) -> nn.Module:
        """A block that computes the same as `block`, an MLP with experts, which stays as it is.

        `config`: of the model's text.
        """
        ...

    def make_stack(self, layers: Iterable[nn.Module]) -> DecoderStack: ...

    def make_head(self, head: nn.Linear, pack: Pack) -> nn.Module:
        """The head, for inputs of the type that the kernels return."""
        ...

    def make_backend(self) -> AttentionBackend:
        """The attention backend for the fused layers."""
        ...


def known(
    model: PreTrainedModel, dtypes: frozenset[torch.dtype], *, states: bool = False, mixtures: bool = True
) -> Family | None:
    """The family of a model whose layers can be fused with weights of `dtypes`; None if they cannot.

    `states`, `mixtures`: whether layers with a state, and with experts, can be fused.
    """
    family, head = family_of(model, states=states), model.get_output_embeddings()
    stage = stage_of(model)
    has_head = stage is None or stage.has_head
    if family is None or not Positions.are_fixed(model) or (has_head and type(head) is not nn.Linear):
        return None
    layers = model.get_decoder().layers
    for layer in layers if stage is None else layers[stage.layers.start : stage.layers.stop]:
        if not family.has(layer, "DecoderLayer"):
            return None
        mixed = has_mixture(layer, family)
        if mixed and not mixtures:
            return None
        if not mixed and type(getattr(layer.mlp, family.activation)) not in ACTIVATIONS:
            return None
        linears = [
            module
            for name, module in layer.named_modules()
            if name.endswith("_proj") and not (mixed and name.startswith("mlp."))
        ]
        if any(type(linear) is not nn.Linear or linear.weight.dtype not in dtypes for linear in linears):
            return None
    return family


def has_mixture(layer: Any, family: Family) -> bool:
    """Whether the MLP of a layer of `family` has experts."""
    return family.mixture is not None and family.has(layer.mlp, family.mixture)


def fuse(
    model: PreTrainedModel,
    parts: Parts,
    pack: Packer,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Replace layers, head and forward by those of `parts` in place; returns how many layers: all or 0.

    `pack` makes the linears. Original layers are freed as soon as their weights are
    packed. Only the first layers are kept, until the logits of the fused layers have been compared with
    theirs.
    """
    family = known(model, parts.dtypes, states=parts.states, mixtures=parts.mixtures)
    if family is None:
        return 0
    decoder: Any = model.get_decoder()
    own, head = decoder.layers, model.get_output_embeddings()
    first, layers, stage = FirstLayers(model), list(own), stage_of(model)
    held = range(len(layers)) if stage is None else stage.layers
    heads = (layer.self_attn.head_dim for layer in layers if hasattr(layer, "self_attn"))
    head_dim = next(heads, None) or decoder.config.head_dim
    positions = Positions(model, head_dim, family.turned)

    def make(index: int, layer: nn.Module) -> nn.Module:
        own: Any = layer
        mixture = None
        if has_mixture(own, family):
            mixture = Mixture(parts.make_mixture(own.mlp, model.config.get_text_config(), pack))
        return parts.make_layer(own, family, first.call_of(index), positions.layers[index], pack, mixture)

    def put(made: list[nn.Module]) -> None:
        stack = parts.make_stack(made)
        decoder.layers = nn.ModuleList([stack])
        model.forward = FusedForward(model, family, Decoder(model, family, positions, stack, parts.kernels))

    with torch.inference_mode():
        made = [make(index, layers[index]) for index in range(held.start, first.count)]
        if stage is None or stage.has_head:
            model.set_output_embeddings(parts.make_head(head, pack))
        put(made)
        wrong = first.wrong(parts.make_backend(), pack.error)
        if wrong is not None:
            log.error("%s is not fused: %s", type(model).__name__, wrong)
            del model.forward
            model.set_output_embeddings(head)
            decoder.layers = own
            return 0
        del own, head
        layers.reverse()  # taken from the end, so that each is freed once it is packed
        for index in range(held.stop):
            layer = layers.pop()
            if index >= first.count:
                made.append(make(index, layer))
            if progress is not None and (index + 1) % PROGRESS == 0:
                progress(f"quantised {index + 1} of {held.stop} layers")
        put(made)
    return len(held)
