"""The places of a model that adapters can change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.model.forward import applied_adapters
from serve_app.engine.model.lora import ATTENTION, MLP, MODULES, Site
from serve_app.engine.state.functions import FUNCTIONS
from serve_app.engine.weights.packed_linear import PackedLinear


def find_sites(module: PreTrainedModel) -> Iterator[Site]:
    """The linears of the decoder's layers that adapters can change.

    A fused layer lists its own. In any other layer, hooks are put on the linears with Llama's names; a name
    that occurs more than once in the layer, as experts' names do, is left out, and so are linears of classes
    with a state, where a name means something else.
    """
    config = module.config.get_text_config()
    layers = getattr(module.get_decoder(), "layers", ())
    for index, layer in enumerate(layers):
        if not hasattr(layer, "sites"):
            yield from _hooked(layer, index, config)
            continue
        yield from layer.sites()
        for number, mixture in layer.mixtures():
            yield from _hooked(mixture, number, config)


def _hooked(part: nn.Module, layer: int, config: Any) -> Iterator[Site]:
    """The sites of a layer, or of a part of it, on whose linears it puts hooks."""
    others = [
        child for owner in part.modules() if type(owner).__name__ in FUNCTIONS for child in owner.children()
    ]
    linears = [
        (path.rpartition(".")[2], child)
        for path, child in part.named_modules()
        if _is_linear(child) and child not in others
    ]
    times = Counter(name for name, _ in linears)
    for name, linear in linears:
        widths = _widths(name, linear, config)
        if widths is not None and times[name] == 1:
            site = Site(layer, linear.in_features, widths)
            linear.register_forward_hook(_Hook(site))
            yield site


class _Hook:
    """Adds the products of the step's adapters to the output of one linear."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        adapters = applied_adapters()
        if adapters is not None:
            x: torch.Tensor = inputs[0]
            flat = x.reshape(-1, x.shape[-1]).contiguous()
            adapters.add(self._site, flat, output.view(-1, output.shape[-1]))


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or isinstance(module, PackedLinear)


def _widths(name: str, linear: Any, config: Any) -> dict[str, int] | None:
    """The output width of each module in a linear of this name; None if no adapter can change the linear."""
    if name in MODULES:
        return {name: linear.out_features}
    if name == "gate_up_proj":
        return dict.fromkeys(MLP, linear.out_features // 2)
    if name == "qkv_proj":
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head = linear.out_features // (heads + 2 * kv_heads)
        return dict(zip(ATTENTION, (heads * head, kv_heads * head, kv_heads * head), strict=True))
    return None
