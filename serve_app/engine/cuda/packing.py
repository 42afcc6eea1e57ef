"""Products with codes, on a GPU, in modules that stay transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from serve_app.codes.tensor import CodedTensor
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.experts.grouped import PLACE, group_experts
from serve_app.engine.fused.checks import FirstLayers, run_model
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.gpu_codes import CODES
from serve_app.engine.weights.packable import packable_linears, router_sizes
from serve_app.engine.weights.packed_linear import Pack
from serve_app.engine.weights.plain import PLAIN


def has_codes(module: nn.Module) -> bool:
    """Whether a weight of `module` is that of a quantised checkpoint, as codes."""
    return any(isinstance(each, CodedTensor) for each in module.parameters())


def pack_parts(
    module: nn.Module,
    config: Any,
    run: Callable[[], object],
    weights: WeightFormat,
    pack: Pack,
    *,
    experts: bool,
) -> int:
    """Pack the linears and experts of `module` in the format `weights`, or those that are codes already;
    returns how many modules.

    `config`: of the model's text. `run`: makes one forward. `experts`: kernels compute experts, too.
    """
    linears, routers = packable_linears(module, run), router_sizes(config)
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear) or child not in linears or child.out_features in routers:
                continue
            if weights is PLAIN and not isinstance(child.weight, CodedTensor):
                continue
            setattr(parent, name, pack(child))
            child._parameters.clear()
            count += 1
    grouped = experts and group_experts(module, CODES.get(weights.name)) is not None
    return count + grouped


def pack_model(model: PreTrainedModel, weights: WeightFormat, pack: Pack, *, experts: bool) -> int:
    """As `pack_parts`, for a whole model.

    Raises UnsupportedModel if `weights` can be used for nothing, or if the logits of the first layers become
    wrong.
    """
    first, config = FirstLayers(model), model.config.get_text_config()

    def run() -> None:
        with first.alone():  # which are of all kinds
            run_model(model)

    count = pack_parts(model, config, run, weights, pack, experts=experts)
    if not count and weights is not PLAIN:
        raise UnsupportedModel(
            f"quantization {weights.name} cannot be applied: the model reads its own weights"
        )
    wrong = first.wrong(TritonAttention(), weights.error)
    if wrong is not None:
        advice = "Set dtype, so that they become plain" if weights is PLAIN else "Take `quantization` out"
        raise UnsupportedModel(
            f"{type(model).__name__} computes something else with weights as codes here: {wrong}. {advice}"
        )
    return count


def report_experts(model: PreTrainedModel, progress: Callable[[str], None]) -> None:
    """Say how many layers have experts whose weights are codes, and what they take."""
    made = [getattr(module, PLACE) for module in model.modules() if hasattr(module, PLACE)]
    sizes = [each.num_bytes for each in made if each.in_codes]
    if sizes:
        progress(f"experts of {len(sizes)} layers are multiplied by as codes: {sum(sizes) / 2**30:,.2f} GiB")
