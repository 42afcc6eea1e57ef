"""Replaces a model's own layers and forward by fused ones: all of the layers or none.

Only layers of a known structure are replaced, and only after the first of them gave the original's logits.
The forward around the layers is replaced where it is known too; otherwise transformers' own embedding,
rotary factors and norm run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.fused.checks import FirstLayers
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.fused.layer import AttentionCall, DecoderStack, LayerKernels
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.packed_linear import Pack

log = logging.getLogger(__name__)

LAYERS: Final = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)
PROGRESS: Final = 8  # layers between two lines of progress


class Parts(Protocol):
    """A device's parts of a fused model."""

    @property
    def kernels(self) -> LayerKernels: ...

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types of weights that it multiplies."""
        ...

    def make_layer(self, layer: Any, call: AttentionCall, pack: Pack) -> nn.Module:
        """The fused layer of `layer`, with linears by `pack`."""
        ...

    def make_stack(self, layers: Iterable[nn.Module]) -> DecoderStack: ...

    def make_head(self, head: nn.Linear, pack: Pack) -> nn.Module:
        """The head, for inputs of its kernels' type."""
        ...

    def make_backend(self) -> AttentionBackend:
        """The attention backend for its layers."""
        ...


def known(layer: Any, dtypes: frozenset[torch.dtype]) -> bool:
    """Whether a fused layer can replace `layer`: its class, activation and linears are known, of `dtypes`."""
    if type(layer) not in LAYERS or type(layer.mlp.act_fn) not in (SiLUActivation, nn.SiLU, GELUTanh):
        return False
    linears = [module for name, module in layer.named_modules() if name.endswith("_proj")]
    return all(type(linear) is nn.Linear and linear.weight.dtype in dtypes for linear in linears)


def fuse(
    model: PreTrainedModel,
    parts: Parts,
    weights: WeightFormat,
    pack: Pack,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Make decoder layers, head and forward those of `parts`, in place; returns how many layers: all or 0.

    `pack` makes linears of the format `weights`. An original is freed as soon as its weights are packed, but
    for the first layers: they stay until the logits of the fused ones are compared with theirs.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    own = getattr(decoder, "layers", None)
    if not isinstance(own, nn.ModuleList) or not all(known(layer, parts.dtypes) for layer in own):
        return 0
    if type(head) is not nn.Linear:
        return 0
    first, layers = FirstLayers(model), list(own)
    count = len(layers)
    with torch.inference_mode():
        made = [parts.make_layer(layers[i], first.call_of(i), pack) for i in range(first.count)]
        model.set_output_embeddings(parts.make_head(head, pack))
        _put(model, parts, made)
        wrong = first.wrong(parts.make_backend(), weights.error)
        if wrong is not None:
            log.error("%s is not fused: %s", type(model).__name__, wrong)
            vars(model).pop("forward", None)
            model.set_output_embeddings(head)
            decoder.layers = own
            return 0
        del own, head
        layers.reverse()  # taken from the end, so that each is freed once it is packed
        for index in range(count):
            layer = layers.pop()
            if index >= first.count:
                made.append(parts.make_layer(layer, first.call_of(index), pack))
            if progress is not None and (index + 1) % PROGRESS == 0:
                progress(f"quantised {index + 1} of {count} layers")
        _put(model, parts, made)
    return count


def _put(model: PreTrainedModel, parts: Parts, layers: Iterable[nn.Module]) -> None:
    """Give the model fused layers, and a fused forward where its own is known."""
    model.get_decoder().layers = nn.ModuleList([parts.make_stack(layers)])
    fused = FusedForward.of(model, parts.kernels)
    if fused is not None:
        model.forward = fused
