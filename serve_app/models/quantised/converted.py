"""Weights that are converted while a model loads, one by one, from codes to plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import EllipsisType

import torch

from serve_app.models.quantised.packed import PackedTensor, refused
from serve_app.models.quantised.plan import Plan
from serve_app.models.stored import StoredTensor
from serve_app.models.streamed import StreamedTensor, new_tensor, read_tensor


class ConvertedTensor:
    """Stands for a weight where transformers loads a `state_dict`, as `StreamedTensor` does."""

    def __init__(self, packed: PackedTensor, device: torch.device, dtype: torch.dtype) -> None:
        self._packed = packed
        self._device = device
        self._dtype = dtype

    def __getitem__(self, whole: EllipsisType) -> ConvertedTensor:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weight on our device, whatever `device` is, in `dtype` or else the model's type.

        Of experts, one at a time is in memory as codes. Raises OSError if a file is shorter than its header
        says, and ModelLoadError for parts whose values are wrong.
        """
        packed = self._packed
        weight = new_tensor(packed.full_shape, dtype or self._dtype, self._device)
        if packed.experts is None:
            self._write(packed.parts, weight)
            return weight
        for number in range(packed.experts):
            self._write({role: part.entry(number) for role, part in packed.parts.items()}, weight[number])
        return weight

    def _write(self, parts: Mapping[str, StoredTensor], out: torch.Tensor) -> None:
        tensors = {role: read_tensor(part).to(self._device) for role, part in parts.items()}
        try:
            self._packed.unpack(tensors).write_to(out.T if self._packed.transposed else out)
        except ValueError as error:
            names = ", ".join(part.name for part in self._packed.parts.values())
            raise refused(self._packed.name, f"{error} ({names})") from error


def empty_biases(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    """Those of `names` that are biases of converted weights with nothing but zeros in them.

    AutoGPTQ wrote one for each linear, also for models that have none.
    """
    converted = {each.name.removesuffix("weight") + "bias" for each in plan.packed}
    biases = {each.name: each for each in plan.plain if each.name in converted}
    for name in names:
        if name in biases and not bool(read_tensor(biases[name]).any()):
            yield name


def converted_tensors(
    plan: Plan, device: torch.device, dtype: torch.dtype
) -> dict[str, StreamedTensor | ConvertedTensor]:
    """A `state_dict` for transformers' `from_pretrained`, with the names of a checkpoint in plain numbers."""
    return {
        **{each.name: StreamedTensor(each, device) for each in plan.plain},
        **{each.name: ConvertedTensor(each, device, dtype) for each in plan.packed},
    }
