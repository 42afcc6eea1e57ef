"""Packs the weights of a model whose layers stay transformers' own: linears, routers and experts.

Either everything that can be packed is packed or, if the logits of the first layers then become wrong,
nothing is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.exact import VECTOR, connect_exact, exact
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.experts.packed import PLACE, has_experts, pack_experts, unpack_experts
from serve_app.engine.experts.shared import SharedExpert, shared_experts
from serve_app.engine.fused.checks import FirstLayers, run_model
from serve_app.engine.fused.mixture import with_its_weights
from serve_app.engine.kernels import native
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.latents import latents_of
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import Packer
from serve_app.engine.weights.packable import packable_linears, router_sizes
from serve_app.engine.weights.packed_linear import Pack, PackedLinear, as_linear, can_be_packed
from serve_app.engine.weights.plain import PLAIN
from serve_app.engine.weights.stand_ins import Place, multiplied_weights, put_back, stand_in

log = logging.getLogger(__name__)

GATES: Final = "g_proj"  # a linear with one output for each head, in some models; gates are made of them
FEW: Final = 64  # numbers for each number of a row, at most, of a parameter that is no matrix to quantise

Undo = list[Callable[[], object]]


def pack_model(model: PreTrainedModel, weights: WeightFormat, pack: Packer) -> int:
    """Pack all modules that can be packed, in the format `weights`, or none; returns how many it packed.

    `pack` makes linears in that format. Raises UnsupportedModel if the format cannot be used for all weights.
    """
    connect_exact(model)
    first = FirstLayers(model)

    def run() -> None:
        with first.alone():  # they have all kinds of layers, and weights may still be in their files
            run_model(model)

    packing = _Packing(model, model.config.get_text_config(), run, weights, pack)
    undo: Undo = []
    with first.alone():
        count = packing.apply(undo)
    wrong = first.wrong(CpuAttention(), pack.error)
    if wrong is not None:
        if weights is not PLAIN:
            raise UnsupportedModel(
                f"{type(model).__name__} in {weights.name} computes something else on this machine: {wrong}. "
                "Serve the model without `quantization`"
            )
        log.error("%s is not packed: %s", type(model).__name__, wrong)
        for each in reversed(undo):
            each()
        return 0
    if not count and weights is not PLAIN:
        raise UnsupportedModel(
            f"quantization {weights.name} cannot be applied: the model reads its own weights"
        )
    undo.clear()
    return count + packing.apply(None)


def check_format(model: PreTrainedModel, weights: WeightFormat) -> None:
    """Raise UnsupportedModel if `weights` is no format for all weights of `model`, which may be on the meta
    device."""
    run, pack = partial(run_model, model), Packer(model, weights, "cpu")
    _Packing(model, model.config.get_text_config(), run, weights, pack)


def packed_block(block: nn.Module, config: Any, weights: WeightFormat, pack: Pack) -> nn.Module:
    """A copy of `block`, an MLP with experts, with packed weights; `block` itself stays as it is.

    `config`: of the model's text. Raises UnsupportedModel if the format cannot be used for all weights.
    """
    made = with_its_weights(block)
    for part in made.modules():
        if has_experts(part):  # before forwards that would use all of their weights
            pack_experts(part, pack)
    row = next(made.parameters()).new_zeros(1, 1, config.hidden_size)
    _Packing(made, config, partial(made, row), weights, pack).apply(None)
    return made


class _Packing:
    """The parts of a model, or of a block, that can be packed, according to a watched forward."""

    def __init__(
        self, model: nn.Module, config: Any, run: Callable[[], object], weights: WeightFormat, pack: Pack
    ) -> None:
        """`config`: of the model's text. `run`: makes one forward through all kinds of layers."""
        self._model, self._config, self._pack = model, config, pack
        self._routers, self._kernels = router_sizes(config), native()
        self._linears = packable_linears(model, run)
        # Layers may share weights, which are packed once.
        shared = Counter(map(_parameters, self._linears))
        self._shared: dict[tuple[int, int], PackedLinear | None] = {
            each: None for each, count in shared.items() if count > 1
        }
        self._products = multiplied_weights(list(self._candidates()), run)
        if weights is not PLAIN:
            self._check_all(weights)

    def apply(self, undo: Undo | None) -> int:
        """Pack the modules of the model that are not packed yet; returns how many.

        Functions that undo the packing are added to `undo`. Without `undo`, original modules are freed at
        once.
        """
        count, gone = 0, set[nn.Module]()
        for parent in list(self._model.modules()):
            if parent in gone:
                continue
            if has_experts(parent):
                kept = pack_experts(parent, self._pack)
                count += 1
                if undo is not None:
                    undo.append(partial(unpack_experts, parent, kept))
                del kept
            latents = latents_of(parent)
            if latents is not None and latents.can_be_packed:
                expanding = latents.pack(self._pack)
                count += 1
                if undo is not None:
                    undo.append(partial(latents.unpack, expanding))
                del expanding
            shared = shared_experts(parent)
            for name, child in list(parent.named_children()):
                made = self._expert_of(child) if child in shared else self._made(name, child)
                if made is None:
                    continue
                setattr(parent, name, made)
                count += isinstance(made, PackedLinear | SharedExpert)
                gone.update(child.modules())
                if undo is not None:
                    undo.append(partial(setattr, parent, name, child))
                    continue
                for part in child.modules():
                    part._parameters.clear()
            for name in list(parent._parameters):
                if (parent, name) in self._products:
                    weight = stand_in((parent, name), self._linear_of)
                    count += 1
                    if undo is not None:
                        undo.append(partial(put_back, (parent, name), weight))
                    del weight
        self._replace_blocks([] if undo is None else undo)
        if isinstance(self._model, PreTrainedModel):
            head = self._model.get_output_embeddings()
            if isinstance(head, PackedLinear):
                head.wide_output = True
        return count

    def _replace_blocks(self, undo: Undo) -> None:
        """Put native blocks in the place of those that are blocks with experts."""
        if self._kernels is None:
            return
        for parent in list(self._model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(parent, NativeBlock) or not any(
                    hasattr(part, PLACE) for part in child.children()
                ):
                    continue
                made = NativeBlock.of(child, self._config, self._kernels)
                if made is not None:
                    setattr(parent, name, made)
                    undo.append(partial(setattr, parent, name, child))

    def _expert_of(self, mlp: nn.Module) -> SharedExpert | None:
        """The packed replacement of a shared expert; None if its linears are packed by themselves."""
        if self._kernels is None:
            return None
        for linear in mlp.children():
            if isinstance(linear, nn.Linear) and not (
                linear in self._linears and can_be_packed(linear.weight)
            ):
                return None
        return SharedExpert(mlp, self._pack, self._kernels)

    def _made(self, name: str, child: nn.Module) -> nn.Module | None:
        """The packed replacement of a module; None if the module stays as it is."""
        if isinstance(child, Conv1D):
            return self._pack(as_linear(child.weight.T, child.bias)) if can_be_packed(child.weight) else None
        if not isinstance(child, nn.Linear):
            return exact(child)
        if child not in self._linears or not can_be_packed(child.weight):
            return None
        parameters = _parameters(child)
        if (packed := self._shared.get(parameters)) is not None:
            return packed.twin()
        is_router = child.out_features in self._routers
        made = PackedLinear.of(child) if is_router else self._pack(child)
        made.apart = is_router or (name == GATES and child.out_features % VECTOR > 0)
        if parameters in self._shared:
            self._shared[parameters] = made
        return made

    def _linear_of(self, weight: torch.Tensor) -> PackedLinear:
        linear = as_linear(weight, None)
        return PackedLinear.of(linear) if linear.out_features in self._routers else self._pack(linear)

    def _candidates(self) -> Iterator[tuple[str, Place]]:
        """The parameters that the model's own code may multiply by, with their names."""
        for path, module in self._model.named_modules():
            if isinstance(module, nn.Embedding | Conv1D | nn.Conv1d) or module in self._linears:
                continue
            if has_experts(module):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() in (2, 3) and can_be_packed(parameter):
                    yield f"{path}.{name}", (module, name)

    def _check_all(self, weights: WeightFormat) -> None:
        """Raises UnsupportedModel for a matrix that stays unpacked."""
        most = FEW * int(getattr(self._config, "hidden_size", 0))
        for path, module in self._model.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding | Conv1D) or has_experts(module):
                continue
            if isinstance(module, nn.Conv1d):  # of a few numbers a channel
                continue
            for name, parameter in module.named_parameters(path, recurse=False):
                if parameter.dim() == 1 or parameter.numel() <= most:
                    continue
                if (module, name.rpartition(".")[2]) not in self._products:
                    raise UnsupportedModel(
                        f"quantization {weights.name} is for weights by which a model multiplies; {name} is "
                        f"a tensor of shape {tuple(parameter.shape)} that it uses otherwise. Serve the "
                        "model without `quantization`"
                    )


def _parameters(linear: Any) -> tuple[int, int]:
    """Equal for linears that share their parameters, as long as one of them has them."""
    return id(linear.weight), id(linear.bias)
