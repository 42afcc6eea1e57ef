"""The registry of weight formats, and what makes linears in a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.codes.tensor import CodedTensor
from serve_app.config.quantization import FORMATS as SIZES
from serve_app.engine.weights.beside import WeightsBeside
from serve_app.engine.weights.format import Weight, WeightFormat
from serve_app.engine.weights.gpu_formats import FP8
from serve_app.engine.weights.int8_int4 import INT4, INT8
from serve_app.engine.weights.packed_linear import PackedLinear, side_by_side
from serve_app.engine.weights.plain import PLAIN

FORMATS: Final[Mapping[str, WeightFormat]] = {each.name: each for each in (PLAIN, INT8, INT4, FP8)}


class Packer:
    """Packs linears of a model into one layer, in one format, for one kind of device.

    Linears that influence answers most may get another format: `config/quantization.py` says which. Weights
    that are codes stay codes if the format has a product for them; else they are loaded by their numbers.
    """

    def __init__(self, model: PreTrainedModel, weights: WeightFormat, device: str) -> None:
        self._weights, self._device = weights, device
        self._size, self._head = SIZES[weights.name], id(model.get_output_embeddings())
        # By a linear; keeps no weight alive.
        self._names = WeakKeyDictionary((each, name) for name, each in model.named_modules())
        self._kept: list[int] = []  # bytes of weights that are codes
        self._converted: list[int] = []  # bytes of weights that were codes

    def __call__(self, *linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        """As `Pack`."""
        if id(linears[0]) == self._head:
            name = self._size.sensitive
        else:
            name = self._size.format_of(self._names.get(linears[0], ""), self._weights.name)
        return PackedLinear(*side_by_side(*linears, rows=rows), partial(self._load, FORMATS[name]))

    @property
    def error(self) -> float:
        """How much the outputs of a model may be off by what was packed: relative, by norm."""
        return max(self._weights.error, self._weights.codes_error if self._kept else 0.0)

    def report(self, dtype: torch.dtype, progress: Callable[[str], None]) -> None:
        """Say what became of weights that were codes."""
        for sizes, what in (
            (self._kept, "are multiplied by as codes"),
            (self._converted, f"have no product over their codes here, and are in {_name(dtype)}"),
        ):
            if sizes:
                progress(f"{len(sizes)} quantised weights {what}: {sum(sizes) / 2**30:,.2f} GiB")

    def _load(
        self, own: WeightFormat, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool = True
    ) -> Weight:
        """As `Load`, also for a CodedTensor."""
        if not isinstance(weight, CodedTensor):
            return own.loads[self._device](weight, bias, lasting=lasting)
        made = self._load_codes(own, weight, bias, lasting=lasting)
        if made is not None:
            return made
        parts, places = weight.parts()
        if len(parts) > 1:  # unalike, or not all are codes
            alone = [self._load_codes(own, each, None, lasting=lasting) for each in parts]
            if any(each is not None for each in alone):
                return WeightsBeside(
                    [
                        self._load_numbers(own, part, None, lasting=lasting) if each is None else each
                        for each, part in zip(alone, parts, strict=True)
                    ],
                    places,
                    bias,
                )
        return self._load_numbers(own, weight, bias, lasting=lasting)

    def _load_codes(
        self, own: WeightFormat, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool
    ) -> Weight | None:
        """None if these are no codes, or if the device has no product for them."""
        load = own.codes.get(self._device)
        if load is None or not isinstance(weight, CodedTensor):
            return None
        codes = weight.matrix()
        made = None if codes is None else load(codes, bias, weight.dtype, lasting=lasting)
        if made is not None:
            self._kept.append(made.num_bytes)
        return made

    def _load_numbers(
        self, own: WeightFormat, weight: torch.Tensor, bias: torch.Tensor | None, *, lasting: bool
    ) -> Weight:
        coded = isinstance(weight, CodedTensor) and weight.coded
        numbers = weight.numbers() if isinstance(weight, CodedTensor) else weight
        made = own.loads[self._device](numbers, bias, lasting=lasting)
        if coded and self._device in own.codes:
            self._converted.append(made.num_bytes)
        return made


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
