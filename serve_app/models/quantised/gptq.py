"""GPTQ: integers of 2, 3, 4 or 8 bits in groups of inputs, each with a scale and a zero.

`qweight` is packed along the inputs, `qzeros` along the outputs, both without gaps. `g_idx` names the group
of each input, in any order if the checkpoint was made with act-order; it may be absent or all zeros if the
groups follow each other. Version 1 of the format stores each zero minus one, in as many bits; `gptq_v2` does
not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.bits import in_words, unpack, words_for
from serve_app.models.quantised.packed import (
    FLOATS,
    PackedTensor,
    Stored,
    check_shape,
    group_label,
    group_size,
    groups_of,
    need,
    refused,
)
from serve_app.models.quantised.share import Along, Region, taken

_BITS: Final = (2, 3, 4, 8)
_VERSIONS: Final = ("gptq", "gptq_v2")


@dataclass(frozen=True, slots=True)
class _Layer:
    bits: int
    group: int  # -1: all inputs
    version: str

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> _Layer:
        version = settings.get("checkpoint_format") or "gptq"
        bits = settings.get("bits", 0)
        if bits not in _BITS:
            raise ModelLoadError(f"quantization_config: GPTQ with bits {bits!r} is not read here")
        group = group_size(settings.get("group_size", 0))
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"quantization_config: checkpoint_format {version!r} of GPTQ is not read here"
            )
        return cls(bits, group, version)


@dataclass(frozen=True, slots=True)
class Gptq:
    """Reads GPTQ; layers may have settings of their own, by patterns of their names."""

    layer: _Layer
    others: tuple[tuple[str, _Layer], ...]  # by pattern
    endings: tuple[str, ...] = (".qweight", ".qzeros", ".scales", ".g_idx")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Gptq:
        """For the `quantization_config` of a checkpoint."""
        others = (settings.get("dynamic") or {}).items()
        return cls(
            _Layer.of(settings),
            tuple(
                (pattern.removeprefix("+:"), _Layer.of({**settings, **own}))
                for pattern, own in others
                if not pattern.startswith("-:")
            ),
        )

    @property
    def label(self) -> str:
        return f"GPTQ, {self.layer.bits} bits, {group_label(self.layer.group)}"

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        if not name.endswith(".qweight"):
            return None
        module = name.removesuffix(".qweight")
        layer = next((own for pattern, own in self.others if re.match(pattern, module)), self.layer)
        codes = need(stored, name, ("I32",), name)
        zeros = need(stored, f"{module}.qzeros", ("I32",), name)
        scales = need(stored, f"{module}.scales", FLOATS, name)
        if len(codes.shape) != 2 or codes.shape[0] * 32 % layer.bits:
            raise refused(name, f"its shape {list(codes.shape)} does not hold codes of {layer.bits} bits")
        inputs, outputs = codes.shape[0] * 32 // layer.bits, codes.shape[1]
        groups = groups_of(inputs, layer.group, name)
        check_shape(scales, (groups, outputs))
        check_shape(zeros, (groups, words_for(outputs, layer.bits)))
        parts = {"codes": codes, "zeros": zeros, "scales": scales}
        if f"{module}.g_idx" in stored:
            parts["permutation"] = need(stored, f"{module}.g_idx", ("I32", "I64"), name)
            check_shape(parts["permutation"], (inputs,))
        columns = {"codes": in_words(0, layer.bits)}
        if groups > 1 and "permutation" not in parts:  # else scales are of all inputs
            columns |= {"zeros": Along(0, inputs // groups), "scales": Along(0, inputs // groups)}
        return PackedTensor(
            f"{module}.weight",
            (outputs, inputs),
            parts,
            partial(_unpack, layer=layer, group=inputs // groups),
            rows={"codes": Along(1), "zeros": in_words(1, layer.bits), "scales": Along(1)},
            columns=columns,
            group=inputs // groups,
        )


def _unpack(parts: Mapping[str, torch.Tensor], region: Region, layer: _Layer, group: int) -> QuantisedMatrix:
    outputs, inputs = region.shape
    order = parts.get("permutation")
    if order is not None and not bool(order.any()):
        order = torch.arange(len(order), device=order.device) // group
    zeros = unpack(parts["zeros"], layer.bits, outputs)
    if layer.version == "gptq":
        zeros = (zeros + 1) & (2**layer.bits - 1)
    return QuantisedMatrix(
        unpack(parts["codes"].T, layer.bits, inputs),
        parts["scales"].T,
        (1, group),
        zeros=zeros.T,
        permutation=None if order is None else taken(order, region.columns),
    ).in_order()
