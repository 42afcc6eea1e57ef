"""Weights of quantised checkpoints, as codes in their files or as plain numbers, made one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import EllipsisType

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.codes.tensor import CodedTensor
from serve_app.models.quantised.packed import PackedTensor, refused
from serve_app.models.quantised.plan import Plan
from serve_app.models.quantised.share import Region
from serve_app.models.streamed import StreamedTensor, read_tensor


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """The codes of one matrix in their files, as `Source` wants them.

    Raises OSError if a file is shorter than its header says, and ModelLoadError for parts whose values are
    wrong.
    """

    packed: PackedTensor
    expert: int | None
    device: torch.device

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape

    def codes(self) -> QuantisedMatrix:
        matrix = self._read()
        try:
            matrix.check()
        except ValueError as error:
            raise self._refused(error) from error
        return matrix

    def write_to(self, out: torch.Tensor) -> None:
        matrix = self._read()
        try:
            matrix.write_to(out)
        except ValueError as error:
            raise self._refused(error) from error

    def _read(self) -> QuantisedMatrix:
        parts = self.packed.parts
        if self.expert is not None:
            parts = {role: part.entry(self.expert) for role, part in parts.items()}
        tensors = {role: read_tensor(part).to(self.device) for role, part in parts.items()}
        try:
            return self.packed.unpack(tensors, Region.of(self.packed.shape))
        except ValueError as error:
            raise self._refused(error) from error

    def _refused(self, error: ValueError) -> Exception:
        names = ", ".join(part.name for part in self.packed.parts.values())
        return refused(self.packed.name, f"{error} ({names})")


class ConvertedTensor:
    """Stands for a weight where transformers loads a `state_dict`, as `StreamedTensor` does."""

    def __init__(
        self, packed: PackedTensor, device: torch.device, dtype: torch.dtype, *, keep_codes: bool = False
    ) -> None:
        experts = [None] if packed.experts is None else range(packed.experts)
        self._coded = CodedTensor.of(
            [StoredMatrix(packed, expert, device) for expert in experts],
            dtype,
            device,
            experts=packed.experts is not None,
            transposed=packed.transposed,
        )
        self._keep_codes = keep_codes

    def __getitem__(self, whole: EllipsisType) -> ConvertedTensor:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weight on our device, whatever `device` is, in `dtype` or else the model's type: as codes, if
        they are to be kept, which takes no memory, or in plain numbers.

        Raises an error as `StoredMatrix`.
        """
        weight = self._coded.again(self._coded.sources, dtype=dtype or self._coded.dtype)
        return weight if self._keep_codes else weight.numbers()


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
    plan: Plan, device: torch.device, dtype: torch.dtype, *, keep_codes: bool = False
) -> dict[str, StreamedTensor | ConvertedTensor]:
    """A `state_dict` for transformers' `from_pretrained`, with the names of a checkpoint in plain numbers.

    `keep_codes`: quantised weights become CodedTensors, which are read from the files when they are used.
    """
    return {
        **{each.name: StreamedTensor(each, device) for each in plan.plain},
        **{each.name: ConvertedTensor(each, device, dtype, keep_codes=keep_codes) for each in plan.packed},
    }
