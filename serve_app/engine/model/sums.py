"""Layers and vocabularies that are divided among ranks: what each computes is put together here.

The children of a layer that are divided return a part of a sum, which a hook replaces by the whole one. A
fused layer calls no child, so it takes `total_of` each. A divided embedding knows only its own rows, and a
divided head computes only its own columns of logits. Does not depend on how ranks talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

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


def connect_ranks(model: PreTrainedModel, ranks: Ranks, children: Iterable[str], vocab_size: int) -> None:
    """Let `model`, a rank's part, compute what the whole model computes.

    `children`: the names of a layer's children whose outputs are sums. `vocab_size`: of the whole model.
    """
    decoder: Any = model.get_decoder()
    for layer in decoder.layers:
        for name in children:
            child = getattr(layer, name, None)
            if child is not None:
                summed = _Summed(ranks.total)
                setattr(child, _PLACE, summed)
                child.register_forward_hook(summed)
    embedding: Any = model.get_input_embeddings()
    rows = _Rows(ranks, embedding.num_embeddings)
    embedding.register_forward_pre_hook(rows.before)
    embedding.register_forward_hook(rows.after)
    model.register_forward_hook(_Logits(ranks, vocab_size))


def total_of(child: nn.Module) -> Total | None:
    """What makes the outputs of a layer's child whole; None: they are."""
    summed: _Summed | None = getattr(child, _PLACE, None)
    return None if summed is None else summed.total


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
