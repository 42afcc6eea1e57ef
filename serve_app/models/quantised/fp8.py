"""FP8: codes are float8 numbers, with a scale for each tensor, row, or block such as 128 x 128.

The format of DeepSeek, of transformers' `fp8` and `fbgemm_fp8`, and of ModelOpt's FP8. The scale
multiplies, also the one that is called `weight_scale_inv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.packed import PackedTensor, Stored, check_shape, need, refused
from serve_app.models.quantised.share import Along, Region
from serve_app.models.stored import StoredTensor

CODES: Final = ("F8_E4M3", "F8_E5M2")
_SCALES: Final = ("F32", "BF16", "F16", "F8_E8M0")
_ENDINGS: Final = ("_scale_inv", "_scale")  # after the name of the codes


@dataclass(frozen=True, slots=True)
class Fp8:
    """Reads FP8, in blocks or with scales for tensors or rows."""

    block: tuple[int, int] | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Fp8:
        """For the `quantization_config` of a checkpoint."""
        block = settings.get("weight_block_size")
        if block is None:
            return cls(None)
        if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
            raise ModelLoadError(f"quantization_config: weight_block_size {block!r} is not two sizes")
        return cls((block[0], block[1]))

    @property
    def label(self) -> str:
        return "FP8" if self.block is None else f"FP8 in blocks of {self.block[0]} x {self.block[1]}"

    @property
    def endings(self) -> tuple[str, ...]:
        return ("_scale_inv", ".weight_scale")

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        codes = stored[name]
        if codes.dtype not in CODES:
            return None
        found = [name + ending for ending in _ENDINGS if name + ending in stored]
        if len(found) > 1:
            raise refused(name, f"it has both {found[0]} and {found[1]}")
        scales = need(stored, found[0] if found else name + _ENDINGS[self.block is None], _SCALES, name)
        return scaled(codes, scales, self.block)


def scaled(codes: StoredTensor, scales: StoredTensor, block: tuple[int, int] | None) -> PackedTensor:
    """Codes [N, K], or [E, N, K] of experts, that are numbers, with scales for blocks, tensors or rows."""
    if len(codes.shape) not in (2, 3):
        raise refused(codes.name, f"its shape {list(codes.shape)} is of no matrix")
    *lead, rows, columns = codes.shape
    tall, wide = block or (rows, columns)
    blocks = (-(-rows // tall), -(-columns // wide))  # rounded up: the last may be partial
    allowed = {(*lead, *blocks): (tall, wide)}
    if block is None:
        plain = [(*lead,), (*lead, 1)] if lead else [(), (1,)]
        allowed |= dict.fromkeys(plain, (rows, columns))
        allowed |= dict.fromkeys([(*lead, rows), (*lead, rows, 1)], (1, columns))
        if lead:  # experts of [E, K, N], with a scale for each of their outputs
            allowed.setdefault((*lead, 1, columns), (rows, 1))
    check_shape(scales, *allowed)
    tall, wide = allowed[scales.shape]
    layouts: tuple[dict[str, Along], dict[str, Along]] = ({"codes": Along(0)}, {"codes": Along(1)})
    for axis, each in ((0, tall), (1, wide)):
        if each < (rows, columns)[axis]:  # else one scale is for all
            layouts[axis].update(dict.fromkeys(("scales", "zeros"), Along(axis, each)))
    return PackedTensor(
        name=codes.name,
        shape=(rows, columns),
        parts={"codes": codes, "scales": scales},
        unpack=partial(_unpack, block=(tall, wide)),
        rows=layouts[0],
        columns=layouts[1],
        experts=lead[0] if lead else None,
    )


def _unpack(parts: Mapping[str, torch.Tensor], region: Region, block: tuple[int, int]) -> QuantisedMatrix:
    blocks = [-(-size // each) for size, each in zip(region.shape, block, strict=True)]
    zeros = parts.get("zeros")
    return QuantisedMatrix(
        parts["codes"],
        parts["scales"].float().reshape(blocks),
        block,
        zeros=None if zeros is None else zeros.reshape(blocks),
    )
