"""Rotary positions: which numbers of a head are turned together, and the factors by position.

Kernels rotate a whole head: they turn each number of the first half together with the number at the same
place in the second half. For a family that turns neighbouring numbers, or only a part of the head, the rows
of queries and keys are reordered once, at load. Products of queries with keys do not depend on the order.
Pairs that are not turned have the factors one and zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from serve_app.engine.fused.families import Turned

# Kinds of rotary positions whose factors depend on nothing but the position.
FIXED: Final = frozenset({"default", "linear", "llama3", "yarn"})
FIRST_POSITIONS: Final = 4096  # in a table of rotary factors; it doubles when they are not enough

Factors = tuple[torch.Tensor, torch.Tensor]  # cos and sin, each [T, D / 2] float32


@dataclass(frozen=True, slots=True)
class Rotary:
    """How the heads of one layer are turned."""

    kind: int  # which of the model's factors are the layer's
    order: torch.Tensor | None  # [D]: the numbers of a head in the order that kernels turn; None: as they are

    def ordered(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [D] or [H * D], with the numbers in each head reordered by `order`."""
        return weight if self.order is None else weight.view(-1, len(self.order))[:, self.order].flatten()


class RotaryTable:
    """One kind of rotary factors by position, as computed by the model's own module."""

    def __init__(
        self,
        rotary: Any,
        like: torch.Tensor,
        head_dim: int,
        turned: Turned = Turned.HALVES,
        layer_type: str | None = None,
    ) -> None:
        """`like`: a tensor of the model. Like the module, rounds factors to their type, on their device.

        `layer_type`: the type of the layers that use these factors, if the module has several types.
        """
        self._rotary, self._turned, self._head_dim = rotary, turned, head_dim
        self._more = {} if layer_type is None else {"layer_type": layer_type}
        self._like = like.new_empty(0)
        self._cos = self._sin = torch.empty(0, 0)

    def order(self) -> torch.Tensor | None:
        """The `order` of a `Rotary`."""
        size = int(self._factors(1)[0].shape[-1])
        if self._turned is Turned.HALVES_FACTORS_ONCE:
            size *= 2
        if self._turned in (Turned.HALVES, Turned.HALVES_FACTORS_ONCE):
            first, second = torch.arange(size // 2), torch.arange(size // 2, size)
        else:
            first, second = torch.arange(0, size, 2), torch.arange(1, size, 2)
        rest = torch.arange(size, self._head_dim).view(2, -1)
        order = torch.cat([first, rest[0], second, rest[1]])
        return None if torch.equal(order, torch.arange(self._head_dim)) else order

    def at(self, positions: torch.Tensor, end: int) -> Factors:
        """The factors of positions [T], all of them below `end`."""
        if end > len(self._cos):
            length = FIRST_POSITIONS
            while length < end:
                length *= 2
            cos, sin = self._factors(length)
            self._cos, self._sin = self._of_pairs(cos, 1.0), self._of_pairs(sin, 0.0)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _factors(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the first positions, as the module gives them: [length, numbers that are turned]."""
        positions = torch.arange(length, device=self._like.device)
        cos, sin = self._rotary(self._like, positions[None], **self._more)
        return cos[0], sin[0]

    def _of_pairs(self, factors: torch.Tensor, filler: float) -> torch.Tensor:
        """[length, numbers that are turned] -> [length, D / 2] float32: one per pair, then `filler`."""
        if self._turned is Turned.NEIGHBOURS_FACTORS_TOO:
            pairs = factors[:, ::2]
        elif self._turned is Turned.HALVES_FACTORS_ONCE:
            pairs = factors
        else:
            pairs = factors[:, : factors.shape[-1] // 2]
        others = self._head_dim // 2 - pairs.shape[-1]
        return functional.pad(pairs.float(), (0, others), value=filler).contiguous()


class Positions:
    """The rotary factors of a model, by kind, and how each of its layers is turned."""

    def __init__(self, model: PreTrainedModel, head_dim: int, turned: Turned) -> None:
        decoder: Any = model.get_decoder()
        rotary, like = decoder.rotary_emb, decoder.norm.weight
        types = sorted(rotary.rope_type) if isinstance(rotary.rope_type, dict) else [None]
        self._tables = [RotaryTable(rotary, like, head_dim, turned, each) for each in types]
        orders = [table.order() for table in self._tables]
        config = model.config.get_text_config()
        kinds = [0] * config.num_hidden_layers if types == [None] else map(types.index, config.layer_types)
        self.layers = tuple(Rotary(kind, orders[kind]) for kind in kinds)

    @staticmethod
    def are_fixed(model: PreTrainedModel) -> bool:
        """Whether the factors depend on the position alone."""
        kind = getattr(getattr(model.get_decoder(), "rotary_emb", None), "rope_type", None)
        return set(kind.values() if isinstance(kind, dict) else [kind]) <= FIXED

    def at(self, positions: torch.Tensor, end: int) -> Sequence[Factors]:
        """The factors of positions [T], all of them below `end`, by kind."""
        return [table.at(positions, end) for table in self._tables]


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D], the factors [T, D / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
