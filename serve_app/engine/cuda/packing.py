"""Quantises the linears of a model whose layers stay transformers' own, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.experts.grouped import group_experts
from serve_app.engine.fused.checks import FirstLayers, run_model
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.gpu_codes import CODES
from serve_app.engine.weights.packable import packable_linears, router_sizes
from serve_app.engine.weights.packed_linear import Pack


def quantise_parts(
    module: nn.Module, config: Any, run: Callable[[], object], weights: WeightFormat, pack: Pack
) -> int:
    """Pack the linears and experts of `module` in the format `weights`; returns how many modules.

    `config`: of the model's text. `run`: makes one forward.
    """
    linears, routers = packable_linears(module, run), router_sizes(config)
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in linears and isinstance(child, nn.Linear) and child.out_features not in routers:
                setattr(parent, name, pack(child))
                child._parameters.clear()
                count += 1
    return count + (group_experts(module, CODES[weights.name]) is not None)


def quantise_model(model: PreTrainedModel, weights: WeightFormat, pack: Pack) -> int:
    """Pack the linears and experts of `model` in the format `weights`; returns how many modules.

    Raises UnsupportedModel if there are none, or if the logits of the first layers become wrong.
    """
    first, config = FirstLayers(model), model.config.get_text_config()
    count = quantise_parts(model, config, partial(run_model, model), weights, pack)
    if not count:
        raise UnsupportedModel(
            f"quantization {weights.name} cannot be applied: the model reads its own weights"
        )
    wrong = first.wrong(TritonAttention(), weights.error)
    if wrong is not None:
        raise UnsupportedModel(
            f"{type(model).__name__} in {weights.name} computes something else on this GPU: {wrong}. Serve "
            "the model without `quantization`"
        )
    return count
