"""How a tensor is divided among ranks, and how large a part of a layer each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from serve_app.models.split.cut import Cut

Side = tuple[int, int]  # a size in the model, and in a rank


class NotDivided(Exception):
    """A part of a layer cannot be divided; the message says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """What each rank has of one dimension of a tensor: a part of each of the `sides`, which lie side by side.

    If the parts are fewer than the ranks, neighbours have the same. `once`: the tensor is added to a sum over
    ranks, so the first rank has all of it, and the others have zeros.
    """

    dim: int
    sides: tuple[Side, ...]
    once: bool = False

    @property
    def whole(self) -> int:
        """The size of the dimension in the model."""
        return sum(whole for whole, _ in self.sides)

    @property
    def size(self) -> int:
        """The size of the dimension in a rank."""
        return sum(part for _, part in self.sides)

    def cut(self, rank: int, ranks: int) -> Cut:
        ranges, at = [], 0
        for whole, part in self.sides:
            first = at + rank * (whole // part) // ranks * part
            ranges.append((first, first + part))
            at += whole
        if self.once and rank:
            ranges = []
        return Cut(self.dim, tuple(ranges), self.size)


@dataclass(slots=True)
class Part:
    """A module in a layer, and what a rank has of it."""

    module: nn.Module
    ranks: int
    shares: dict[str, Share] = field(default_factory=dict)  # by the name of a tensor in the module
    buffers: dict[str, Share] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # attributes, as a rank has them
    writes: list[str] = field(default_factory=list)  # whose outputs are parts of the layer's sums
    sums: list[str] = field(default_factory=list)  # linears whose outputs are summed before they are used
    norms: dict[str, int] = field(default_factory=dict)  # norms over several ranks' numbers: how many ranks
    experts: int = 0  # a rank's own, if experts are divided by number
    attends: bool = False  # with heads of the configuration's number

    def __contains__(self, name: str) -> bool:
        return self.of(name) is not None

    def of(self, name: str) -> Any:
        """The child or the parameter of this name; None if there is none."""
        child = self.module._modules.get(name)
        return self.module._parameters.get(name) if child is None else child

    def first(self, names: tuple[str, ...]) -> str:
        """The first of these names that the module has. Raises NotDivided if there is none."""
        found = next((name for name in names if name in self), None)
        if found is None:
            raise NotDivided(f"{type(self.module).__name__} has none of {', '.join(names)}")
        return found

    def features(self, name: str) -> Side:
        """The inputs and outputs of a linear. Raises NotDivided for anything else."""
        linear = self.of(name)
        weight = getattr(linear, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or isinstance(linear, nn.Embedding):
            raise NotDivided(f"{name} of {type(self.module).__name__} is not a linear")
        outputs, inputs = weight.shape[::-1] if isinstance(linear, Conv1D) else weight.shape
        return int(inputs), int(outputs)

    def evenly(self, size: int, what: str) -> Side:
        if size % self.ranks:
            raise NotDivided(f"{size} {what} cannot be divided among {self.ranks} ranks")
        return size, size // self.ranks

    def heads(self, count: int, what: str) -> Side:
        """As `evenly`, but if there are fewer than ranks, several ranks may have the same one."""
        if count < self.ranks and not self.ranks % count:
            return count, 1
        return self.evenly(count, what)

    def outputs(self, name: str, *sides: Side) -> None:
        """A rank has some of the outputs of a linear or a convolution."""
        linear = self.of(name)
        self.numbers(f"{name}.weight", 1 if isinstance(linear, Conv1D) else 0, *sides)
        if linear.bias is not None:
            self.numbers(f"{name}.bias", 0, *sides)

    def inputs(self, name: str, side: Side, *, at_once: bool = False) -> None:
        """A rank has some of the inputs of a linear, whose outputs are thus parts of a sum. `at_once`: the
        module itself needs the sum."""
        linear = self.of(name)
        (self.sums if at_once else self.writes).append(name)
        self.numbers(f"{name}.weight", 0 if isinstance(linear, Conv1D) else 1, side)
        if getattr(linear, "bias", None) is not None:
            self.once(f"{name}.bias")

    def once(self, name: str) -> None:
        """A tensor is added to a sum over ranks."""
        size = self.module.get_parameter(name).shape[0]
        self.shares[name] = Share(0, ((size, size),), once=True)

    def numbers(self, name: str, dim: int, *sides: Side) -> None:
        """A rank has a part of a tensor. Raises NotDivided if its size is another than that of all sides."""
        parameter, share = self.module.get_parameter(name), Share(dim, sides)
        if parameter.shape[dim] != share.whole:
            raise NotDivided(f"{name} of {type(self.module).__name__} has another shape than expected")
        self.shares[name] = share

    def by_heads(self, name: str, side: Side) -> None:
        """As `numbers`, for a tensor with one dimension of the size of a number of heads."""
        shape = self.module.get_parameter(name).shape
        if side[0] not in shape:
            raise NotDivided(f"{name} of {type(self.module).__name__} has no number for each head")
        self.numbers(name, tuple(shape).index(side[0]), side)

    def count(self, side: Side, *names: str) -> None:
        """The attributes with these names that the module has, and that count the same."""
        for name in names:
            if getattr(self.module, name, None) == side[0]:
                self.counts[name] = side[1]


# Modules, by name, whose outputs every rank has whole, in a part of a layer that is otherwise divided.
WHOLE: Final = frozenset(
    {
        *("gate", "router", "shared_expert_gate", "e_score_correction_bias", "expert_bias"),  # of experts
        *("q_a_proj", "kv_a_proj_with_mqa", "indexer"),  # of latents
        *("g_a_proj", "f_a_proj"),  # of gates
        *("fc1_latent_proj", "fc2_latent_proj", "pre_expert_proj", "post_expert_proj"),  # around experts
    }
)


def narrow(module: nn.Module, shares: Mapping[str, Share], rows: Mapping[str, int]) -> None:
    """Give a module on the meta device a rank's parameters: parts by `shares`, and `rows` of embeddings."""
    made: dict[int, nn.Parameter] = {}  # by the parameter that it replaces, which may have several places
    for path, share in shares.items():
        owner, _, name = path.rpartition(".")
        _narrow(module.get_submodule(owner), name, share.dim, share.size, made)
    for path, count in rows.items():
        owner, _, name = path.rpartition(".")
        _narrow(module.get_submodule(owner), name, 0, count, made)


def _narrow(owner: Any, name: str, dim: int, size: int, made: dict[int, nn.Parameter]) -> None:
    old = owner._parameters[name]
    if id(old) not in made:
        shape = [*old.shape[:dim], size, *old.shape[dim + 1 :]]
        made[id(old)] = nn.Parameter(old.new_empty(shape), requires_grad=old.requires_grad)
        made[id(made[id(old)])] = made[id(old)]
    owner._parameters[name] = new = made[id(old)]
    if name != "weight":
        return
    if isinstance(owner, nn.Linear):
        owner.out_features, owner.in_features = new.shape
    elif isinstance(owner, nn.Embedding):
        owner.num_embeddings, owner.padding_idx = len(new), None
    elif isinstance(owner, Conv1D):
        owner.nx, owner.nf = new.shape
    elif isinstance(owner, nn.Conv1d):
        owner.in_channels = owner.out_channels = owner.groups = len(new)
