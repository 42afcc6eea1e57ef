"""The registry of weight formats, and functions that make linears in a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.config.quantization import FORMATS as SIZES
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.int8_int4 import INT4, INT8
from serve_app.engine.weights.packed_linear import Pack, PackedLinear
from serve_app.engine.weights.plain import PLAIN

FORMATS: Final[Mapping[str, WeightFormat]] = {each.name: each for each in (PLAIN, INT8, INT4)}


def packer(model: PreTrainedModel, weights: WeightFormat, device: str) -> Pack:
    """A function that packs linears of `model` into one layer, in the format `weights`, for `device`.

    Linears that influence answers most may get another format: `config/quantization.py` says which.
    """
    size, head = SIZES[weights.name], id(model.get_output_embeddings())
    names = WeakKeyDictionary((each, name) for name, each in model.named_modules())  # keeps no weight alive

    def pack(*linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        own = (
            size.sensitive
            if id(linears[0]) == head
            else size.format_of(names.get(linears[0], ""), weights.name)
        )
        return PackedLinear.of(*linears, rows=rows, load=FORMATS[own].loads[device])

    return pack
