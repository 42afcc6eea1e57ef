"""The experts of a layer on a CPU, with packed weights: a function behind transformers' experts interface.

Rows are grouped by expert, so a step reads each chosen expert's weights once, for a prompt and for decodes
alike. The outputs of a row's experts are added in the order of the experts' numbers, so the row's result does
not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from serve_app.engine.experts.gate import gate_of, interleaved, is_experts
from serve_app.engine.kernels import native
from serve_app.engine.kernels.experts import NativeExperts
from serve_app.engine.weights.packed_linear import Pack, as_linear, can_be_packed

NAME: Final = "serve_app_packed"  # of the function, to transformers
PLACE: Final = "packed_experts"  # the attribute of a module that has them
PARAMETERS: Final = (
    "gate_up_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj_bias",
    "up_proj_bias",
    "down_proj_bias",
)

Kept = tuple[Mapping[str, nn.Parameter | None], str | None]  # the parameters of a module, and its function


class PackedExperts:
    """Computes the same as an experts module of transformers, with linears of its own."""

    def __init__(self, module: nn.Module, pack: Pack) -> None:
        """Takes the weights of `module` apart and packs them; the module itself stays as it is."""
        experts: Any = module
        gate = gate_of(module)
        in_turn = gate is not None and not experts.is_concatenated
        up = list(_linears(experts, "gate_up_proj" if experts.has_gate else "up_proj"))
        rows = interleaved(up[0].out_features) if in_turn else None
        self._up = [pack(each, rows=rows) for each in up]
        self._down = [pack(each) for each in _linears(experts, "down_proj")]
        self._gate: Any = gate or (experts._apply_gate if experts.has_gate else experts.act_fn)
        self._norm: Any = (
            experts.post_expert_norm if getattr(experts, "has_post_expert_norm", False) else None
        )
        self.native: NativeExperts | None = None  # None: no native call can compute them
        if gate is not None and self._norm is None and native() is not None:
            described = [[each.describe() for each in linears] for linears in (self._up, self._down)]
            self.native = NativeExperts.of(
                *described, gelu=gate.gelu, limit=gate.limit, alpha=gate.alpha, added=gate.added
            )

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in (*self._up, *self._down))

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, N], the numbers of each row's experts [T, K] and their weights -> [T, N] of the type of x.

        A number beyond the last expert selects no expert.
        """
        kernels = native()
        if self.native is not None and kernels is not None:
            return kernels.run_experts(self.native, x, chosen, weights).to(x.dtype)
        rows, weights = x.float(), weights.float()
        out = torch.zeros_like(rows)
        for number, (up, down) in enumerate(zip(self._up, self._down, strict=True)):
            taken, place = (chosen == number).nonzero(as_tuple=True)
            if len(taken):
                made = down.project(self._gate(up.project(rows[taken])))
                made = made if self._norm is None else self._norm(made)
                out.index_add_(0, taken, made * weights[taken, place, None])
        return out.to(x.dtype)


def has_experts(module: nn.Module) -> bool:
    """Whether a module has experts behind transformers' interface, whose weights can be packed."""
    return is_experts(module) and can_be_packed(module.get_parameter("down_proj"))


def pack_experts(module: nn.Module, pack: Pack) -> Kept:
    """Let our function compute the experts of `module`; returns what `unpack_experts` needs to undo this."""
    experts: Any = module
    setattr(module, PLACE, PackedExperts(module, pack))
    kept: dict[str, nn.Parameter | None] = {
        name: module._parameters.pop(name) for name in PARAMETERS if name in module._parameters
    }
    before = experts.config._experts_implementation
    experts.config._experts_implementation_internal = NAME
    return kept, before


def unpack_experts(module: nn.Module, kept: Kept) -> None:
    """Undo `pack_experts`."""
    experts: Any = module
    delattr(module, PLACE)
    module._parameters.update(kept[0])
    experts.config._experts_implementation_internal = kept[1]


def _linears(experts: Any, name: str) -> Iterator[nn.Linear]:
    """The matrices with this name as linears, one for each expert."""
    biases = getattr(experts, f"{name}_bias") if experts.has_bias else None
    for number, weight in enumerate(getattr(experts, name)):
        matrix = weight.T if experts.is_transposed else weight
        yield as_linear(matrix, None if biases is None else biases[number])


def _packed(module: nn.Module, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    experts: PackedExperts = getattr(module, PLACE)
    return experts(x, chosen, weights)


ExpertsInterface.register(NAME, _packed)
