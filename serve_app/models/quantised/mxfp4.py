"""MXFP4 as gpt-oss is published: experts as blocks of 32 four-bit floats with a power of two as their scale.

`X_blocks` [E, N, K / 32, 16] holds two codes in each byte, the first in the low half, and `X_scales` [E, N,
K / 32] the exponents (OCP Microscaling Formats 1.0: E2M1 and E8M0). The model's weight X is [E, K, N].
Gate and up lie in turn, as the model has them; biases are plain tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.quantised.bits import e2m1, nibbles
from serve_app.models.quantised.packed import PackedTensor, Stored, check_shape, need, refused
from serve_app.models.quantised.share import Along, Region

_BLOCK: Final = 32
_BLOCKS, _SCALES = "_blocks", "_scales"


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Reads gpt-oss's experts."""

    label: str = "MXFP4"
    endings: tuple[str, ...] = (_BLOCKS, _SCALES)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Mxfp4:
        """For the `quantization_config` of a checkpoint."""
        return cls()

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        if not name.endswith(_BLOCKS):
            return None
        weight = name.removesuffix(_BLOCKS)
        blocks = need(stored, name, ("U8",), name)
        scales = need(stored, weight + _SCALES, ("U8",), name)
        if len(blocks.shape) != 4 or blocks.shape[3] != _BLOCK // 2:
            raise refused(name, f"its shape is {list(blocks.shape)}, not [experts, rows, blocks, 16]")
        experts, rows, wide, _ = blocks.shape
        check_shape(scales, (experts, rows, wide))
        return PackedTensor(
            name=weight,
            shape=(rows, wide * _BLOCK),
            parts={"blocks": blocks, "scales": scales},
            unpack=unpack,
            rows={"blocks": Along(0), "scales": Along(0)},
            columns={"blocks": Along(1, _BLOCK), "scales": Along(1, _BLOCK)},
            transposed=True,
            experts=experts,
        )


def unpack(parts: Mapping[str, torch.Tensor], region: Region | None = None) -> QuantisedMatrix:
    """One expert: `blocks` [N, K / 32, 16] and `scales` [N, K / 32], both uint8."""
    blocks = parts["blocks"]
    return QuantisedMatrix(
        nibbles(blocks).flatten(1),
        parts["scales"].view(torch.float8_e8m0fnu).float(),  # 255 is NaN
        (1, _BLOCK),
        values=e2m1(blocks.device),
    )
