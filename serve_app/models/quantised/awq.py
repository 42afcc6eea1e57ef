"""AWQ in the order of its GEMM kernels: four-bit integers in groups of inputs, each with a scale and a zero.

`qweight` and `qzeros` are packed along the outputs. The eight codes of a word are of the outputs 0, 2, 4, 6,
1, 3, 5, 7, the lowest bits first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.bits import unpack
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
from serve_app.models.quantised.share import Along, Region

_BITS: Final = 4
_EACH: Final = 8  # codes of a word
_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)  # where the codes of outputs 0 to 7 lie in a word


@dataclass(frozen=True, slots=True)
class Awq:
    """Reads AWQ."""

    group: int  # -1: all inputs
    endings: tuple[str, ...] = (".qweight", ".qzeros", ".scales")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Awq:
        """For the `quantization_config` of a checkpoint."""
        bits = settings.get("bits", settings.get("w_bit"))
        version = str(settings.get("version") or settings.get("format") or "gemm")
        if bits != _BITS:
            raise ModelLoadError(f"quantization_config: AWQ with bits {bits!r} is not read here, only 4")
        if version.lower() != "gemm":
            raise ModelLoadError(
                f"quantization_config: AWQ of version {version!r} is not read here, only 'gemm'"
            )
        return cls(group_size(settings.get("group_size", settings.get("q_group_size"))))

    @property
    def label(self) -> str:
        return f"AWQ, 4 bits, {group_label(self.group)}"

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        if not name.endswith(".qweight"):
            return None
        module = name.removesuffix(".qweight")
        codes = need(stored, name, ("I32",), name)
        zeros = need(stored, f"{module}.qzeros", ("I32",), name)
        scales = need(stored, f"{module}.scales", FLOATS, name)
        if len(codes.shape) != 2:
            raise refused(name, f"its shape {list(codes.shape)} is of no matrix")
        inputs, words = codes.shape
        groups = groups_of(inputs, self.group, name)
        check_shape(scales, (groups, words * _EACH))
        check_shape(zeros, (groups, words))
        parts = {"codes": codes, "zeros": zeros, "scales": scales}
        group = Along(0, inputs // groups)
        return PackedTensor(
            f"{module}.weight",
            (words * _EACH, inputs),
            parts,
            partial(_unpack, group=inputs // groups),
            rows={"codes": Along(1, _EACH), "zeros": Along(1, _EACH), "scales": Along(1)},
            columns={"codes": Along(0), "zeros": group, "scales": group},
        )


def _unpack(parts: Mapping[str, torch.Tensor], region: Region, group: int) -> QuantisedMatrix:
    return QuantisedMatrix(
        _outputs(parts["codes"]), parts["scales"].T, (1, group), zeros=_outputs(parts["zeros"])
    )


def _outputs(words: torch.Tensor) -> torch.Tensor:
    """[K, W] -> [8 W, K]."""
    rows, count = words.shape
    codes = unpack(words, _BITS, count * _EACH).view(rows, count, _EACH)[:, :, list(_PLACES)]
    return codes.reshape(rows, count * _EACH).T.contiguous()
