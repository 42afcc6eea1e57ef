"""NVFP4: four-bit floats (E2M1), a float8 scale for sixteen columns, and one float32 scale for the matrix.

Two codes lie in a byte, the first in the low half. ModelOpt's `weight_scale_2` multiplies the scales of
groups, and compressed-tensors' `weight_global_scale` divides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.quantised.bits import e2m1, nibbles
from serve_app.models.quantised.packed import PackedTensor, Stored, check_shape, groups_of, need, refused
from serve_app.models.quantised.share import Along, Region

GROUP: Final = 16
_SCALE, _OUTER = "_scale", "_scale_2"


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """Reads ModelOpt's NVFP4."""

    label: str = "NVFP4"
    endings: tuple[str, ...] = (".weight_scale", ".weight_scale_2")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Nvfp4:
        """For the `quantization_config` of a checkpoint."""
        return cls()

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        if stored[name].dtype != "U8" or not name.endswith(".weight"):
            return None
        return packed_nvfp4(name, name, name + _SCALE, name + _OUTER, stored, divides=False)


def packed_nvfp4(
    name: str, codes: str, scales: str, outer: str, stored: Stored, *, divides: bool
) -> PackedTensor:
    """The weight `name`, whose parts have the names that follow. `divides`: what the outer scale does."""
    parts = {
        "codes": need(stored, codes, ("U8",), codes),
        "scales": need(stored, scales, ("F8_E4M3",), codes),
        "outer": need(stored, outer, ("F32",), codes),
    }
    if len(parts["codes"].shape) != 2:
        raise refused(codes, f"its shape {list(parts['codes'].shape)} is of no matrix")
    rows, columns = parts["codes"].shape[0], 2 * parts["codes"].shape[1]
    check_shape(parts["scales"], (rows, groups_of(columns, GROUP, codes)))
    check_shape(parts["outer"], (), (1,))
    return PackedTensor(
        name,
        (rows, columns),
        parts,
        partial(_unpack, divides=divides),
        rows={"codes": Along(0), "scales": Along(0)},
        columns={"codes": Along(1, 2), "scales": Along(1, GROUP)},
    )


def _unpack(parts: Mapping[str, torch.Tensor], region: Region, divides: bool) -> QuantisedMatrix:
    scales, outer = parts["scales"].float(), parts["outer"].reshape(1, 1)
    if not bool(outer > 0):
        raise ValueError(f"the scale of the whole matrix is {float(outer)}")
    return QuantisedMatrix(
        nibbles(parts["codes"]),
        scales / outer if divides else scales * outer,
        (1, GROUP),
        values=e2m1(parts["codes"].device),
    )
