"""Layers and vocabularies that are divided among ranks: what each computes is put together here.

The children of a layer that are divided return a part of a sum, which a hook replaces by the whole one. A
fused layer calls no child, so it takes `total_of` each. A divided embedding knows only its own rows, and a
divided head computes only its own columns of logits. Experts that another rank has add nothing to the sum.
Does not depend on how ranks talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from serve_app.engine.exact import silu
from serve_app.engine.model.stages import stage_of

_PLACE: Final = "serve_app_total"

Total = Callable[[torch.Tensor], torch.Tensor]


class Ranks(Protocol):
    """The ranks that a model is divided among, of which this process is one. All make the same calls."""

    @property
    def rank(self) -> int: ...

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, of the same shape and type: the same bits in every rank."""
        ...

    def side_by_side(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts [..., N], in the order of ranks: [..., ranks x N]."""
        ...


@dataclass(frozen=True, slots=True)
class Joints:
    """Where ranks meet in a model: modules of each rank's part."""

    summed: Collection[nn.Module]  # their outputs are sums over ranks
    norms: Mapping[nn.Module, int]  # over the numbers of as many neighbouring ranks
    experts: Mapping[Any, int]  # of which each rank has as many of its own
    vocab_size: int  # of the whole model


def connect_ranks(model: PreTrainedModel, ranks: Ranks, joints: Joints) -> None:
    """Let `model`, a rank's part, compute what the whole model computes."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in joints.summed and _is_linear(child):
                setattr(parent, name, _SummedLinear(child, ranks.total))
            elif child in joints.summed:
                summed = _Summed(ranks.total)
                setattr(child, _PLACE, summed)
                child.register_forward_hook(summed)
    for norm, count in joints.norms.items():
        norm.forward = SpreadNorm(norm, ranks, count)
    for module, count in joints.experts.items():
        module._is_expert_parallel = True  # to transformers' own functions
        module.register_forward_pre_hook(_OwnExperts(ranks.rank, count))
    embedding: Any = model.get_input_embeddings()
    if embedding.weight is not None:  # else it is in another stage
        rows = _Rows(ranks, embedding.num_embeddings)
        embedding.register_forward_pre_hook(rows.before)
        embedding.register_forward_hook(rows.after)
    stage = stage_of(model)
    if stage is None or stage.has_head:
        model.register_forward_hook(_Logits(ranks, joints.vocab_size))


def total_of(child: nn.Module) -> Total | None:
    """What makes the outputs of a layer's child whole; None: they are."""
    summed: _Summed | None = getattr(child, _PLACE, None)
    return None if summed is None else summed.total


def spread(norm: nn.Module) -> SpreadNorm | None:
    """What computes a norm over the numbers of several ranks; None: its numbers are this rank's."""
    forward = vars(norm).get("forward")
    return forward if isinstance(forward, SpreadNorm) else None


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)


class _SummedLinear(nn.Module):
    """A linear whose outputs are sums over ranks. Another one may take its place."""

    def __init__(self, linear: nn.Module, total: Total) -> None:
        super().__init__()
        self.linear, self._total = linear, total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._total(self.linear(x))


class SpreadNorm:
    """The forward of an RMSNorm, gated or not, whose groups are spread over several neighbouring ranks.

    A rank has one part of each number of the group, and knows the squares of the others by their sum. If the
    same numbers are in several ranks, all are in equally many.
    """

    def __init__(self, norm: Any, ranks: Ranks, count: int) -> None:
        self._norm, self._ranks, self._count = norm, ranks, count
        self._gate_last = bool(getattr(norm, "norm_before_gate", False))

    def __call__(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """[..., N] -> [..., N], of a rank's part of one group."""
        factor = 1.0 if gate is None else silu(gate.float())
        own: torch.Tensor = x.float() if self._gate_last else x.float() * factor
        own = self.normalised(own) * self._norm.weight
        own = own * factor if self._gate_last else own
        return own.to(x.dtype)

    def normalised(self, own: torch.Tensor) -> torch.Tensor:
        """[..., N] -> [..., N] float32, before they are multiplied by the weight."""
        squares = self._ranks.side_by_side(own.square().sum(-1, keepdim=True))
        first = self._ranks.rank // self._count * self._count
        total = squares[..., first : first + 1].clone()
        for other in range(first + 1, first + self._count):
            total += squares[..., other : other + 1]
        mean = total / (self._count * own.shape[-1])
        return own * torch.rsqrt(mean + self._norm.variance_epsilon)


class _OwnExperts:
    """The hook of experts of which this rank has some: all others are numbers that select none."""

    def __init__(self, rank: int, count: int) -> None:
        self._first, self._count = rank * count, count

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, chosen, weights = inputs
        own = chosen - self._first
        others = (own < 0) | (own >= self._count)
        return x, own.masked_fill(others, self._count), weights.masked_fill(others, 0)


class _Summed:
    """The hook of a child. A copy of the child has the same one."""

    def __init__(self, total: Total) -> None:
        self.total = total

    def __call__(self, child: nn.Module, inputs: object, output: Any) -> Any:
        if isinstance(output, tuple):
            return self.total(output[0]), *output[1:]
        return self.total(output)

    def __deepcopy__(self, memo: object) -> _Summed:
        return self


class _Rows:
    """The rows of an embedding that a rank has."""

    def __init__(self, ranks: Ranks, count: int) -> None:
        self._ranks, self._first, self._count = ranks, ranks.rank * count, count
        self._others = torch.empty(0)

    def before(self, embedding: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        ids = inputs[0] - self._first
        self._others = (ids < 0) | (ids >= self._count)
        return (ids.masked_fill(self._others, 0), *inputs[1:])

    def after(self, embedding: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return self._ranks.total(output.masked_fill(self._others[..., None], 0))


class _Logits:
    """The logits of the whole vocabulary."""

    def __init__(self, ranks: Ranks, vocab_size: int) -> None:
        self._ranks, self._vocab_size = ranks, vocab_size

    def __call__(self, model: nn.Module, inputs: object, output: Any) -> Any:
        whole = self._ranks.side_by_side(output.logits)
        return replace(output, logits=whole[..., : self._vocab_size])
