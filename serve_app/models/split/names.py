"""Which parameter of a model a tensor of its checkpoint becomes, by transformers' own conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter

from serve_app.models.split.share import Share

JOINS: Final = frozenset({"MergeModulelist", "Concatenate"})
PARTS: Final = frozenset({"Chunk", "Split"})
SWAPS: Final = frozenset({"Transpose"})


class OtherForm(Exception):
    """A tensor of a checkpoint is converted in a way that cannot be divided; the message is its name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a tensor of a checkpoint is of a parameter."""

    path: str  # of the parameter
    share: Share | None  # of the tensor; None: every rank that needs it has all of it


class Names:
    """The tensors of the checkpoints of one model."""

    def __init__(self, model: PreTrainedModel, shares: Mapping[str, Share]) -> None:
        transforms: Any = get_model_conversion_mapping(model)
        self._renamings = [each for each in transforms if not isinstance(each, WeightConverter)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._shapes = {
            path: tuple(each.shape) for path, each in model.named_parameters(remove_duplicate=False)
        }
        self._prefix = f"{model.base_model_prefix}."
        self._shares = shares

    def piece(self, name: str, shape: tuple[int, ...]) -> Piece:
        """Raises OtherForm."""
        piece = self._piece(name, shape)
        share = piece.share
        if share is not None and shape[share.dim : share.dim + 1] != (share.whole,):
            raise OtherForm(name)
        return piece

    def path(self, name: str) -> str:
        """The path of a parameter that the tensor becomes, or a part of it."""
        return self._renamed(name)[0]

    def _renamed(self, name: str) -> tuple[str, WeightConverter | None, int]:
        """The path, and the conversion with the number of this one among its sources."""
        path = name
        for each in self._renamings:
            path, _ = each.rename_source_key(path)
        for each in self._converters:
            path, pattern = each.rename_source_key(path)
            if pattern is not None:
                return self._known(path), each, each.source_patterns.index(pattern)
        return self._known(path), None, 0

    def _piece(self, name: str, shape: tuple[int, ...]) -> Piece:
        path, converter, index = self._renamed(name)
        if converter is None:
            return Piece(path, self._shares.get(path))
        targets = [
            self._known(path.replace(converter.target_patterns[0], each, 1))
            for each in converter.target_patterns
        ]
        shares = [self._shares.get(each) for each in targets]
        divided = [each for each in shares if each is not None]
        if not divided:
            return Piece(path, None)
        operations = frozenset(type(each).__name__ for each in converter.operations)
        first = divided[0]
        if operations <= JOINS:
            merged, sides = "MergeModulelist" in operations, first.sides
            if merged and first.dim == 0:  # whole tensors, one of each expert
                return Piece(path, Share(0, ((shape[0], shape[0]),), once=True) if first.once else None)
            if len(converter.source_patterns) > 1:  # each is one side
                if len(sides) != len(converter.source_patterns):
                    raise OtherForm(name)
                sides = (sides[index],)
            return Piece(path, Share(first.dim - merged, sides, first.once))
        if operations <= PARTS and len(divided) == len(shares):
            sides = tuple(side for each in divided for side in each.sides)
            return Piece(path, Share(first.dim, sides, first.once))
        if operations <= SWAPS and len(shape) > 1:
            last = len(shape) - 1
            swapped = shape != self._shapes[path] and shape[-2:] == self._shapes[path][-2:][::-1]
            dim = {last: last - 1, last - 1: last}.get(first.dim, first.dim) if swapped else first.dim
            return Piece(path, Share(dim, first.sides, first.once))
        raise OtherForm(name)

    def _known(self, path: str) -> str:
        """The parameter's path with or without the prefix of the base model, whichever there is."""
        for each in (path, self._prefix + path, path.removeprefix(self._prefix)):
            if each in self._shapes:
                return each
        return path
