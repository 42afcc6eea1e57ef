"""GGUF: llama.cpp's blocks of 32 or 256 numbers of a row, each with scales of its own.

The older types have a scale, and perhaps a minimum, for 32 numbers. A block of the K types is of 256 numbers,
whose scales and minimums, one for 16 or 32 numbers, are integers times the block's own. Those products are
exact in float32, and become the scales and offsets here. Each function takes blocks [N, B, bytes].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.gguf.changes import GROUPED_COLUMNS, IN_TURN, TRANSPOSED, column_order
from serve_app.models.gguf.types import BLOCKS, NumberType
from serve_app.models.quantised.bits import e2m1
from serve_app.models.quantised.packed import PackedTensor, Scheme, Stored, refused
from serve_app.models.quantised.share import Along, Region
from serve_app.models.stored import StoredTensor

AT_ONCE: Final = 2**12  # blocks
_LEVELS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4 types


@dataclass(frozen=True, slots=True)
class Gguf:
    """Reads the weights of a GGUF file that are blocks; the others are plain."""

    label: str
    endings: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Gguf:
        """For the `quantization_config` of a folder that describes a GGUF file."""
        return cls(f"GGUF ({', '.join(settings['types'])})")

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        tensor = stored[name]
        if tensor.dtype not in BLOCKS:
            return None
        if len(tensor.shape) not in (2, 3):
            raise refused(name, f"its shape {list(tensor.shape)} is of no matrix")
        *lead, rows, columns = tensor.shape
        kind = BLOCKS[tensor.dtype]
        order = column_order(tensor.changes)
        numbers = math.prod(tensor.shape)
        return PackedTensor(
            name,
            (rows, columns),
            {"blocks": _in_blocks(tensor, kind)},
            partial(unpack, kind=kind.name, order=order),
            rows={"blocks": Along(0)},
            columns={"blocks": Along(1, kind.numbers)} if order is None else {},
            transposed=(TRANSPOSED,) in tensor.changes,
            experts=lead[0] if lead else None,
            scheme=Scheme(kind.bits, numbers // kind.numbers * kind.scales, kind.minimums, kind.table),
        )


def _in_blocks(tensor: StoredTensor, kind: NumberType) -> StoredTensor:
    """The bytes of a matrix, or of each expert's, of which only the order of rows is still to be changed."""
    changes = tuple(
        (IN_TURN, 0) if each[0] == IN_TURN else each
        for each in tensor.changes
        if each[0] not in (TRANSPOSED, GROUPED_COLUMNS)
    )
    return replace(
        tensor,
        dtype="U8",
        shape=(*tensor.shape[:-1], tensor.shape[-1] // kind.numbers, kind.num_bytes),
        changes=changes,
        pieces=tuple(_in_blocks(each, kind) for each in tensor.pieces),
    )


def unpack(
    parts: Mapping[str, torch.Tensor],
    region: Region | None = None,
    *,
    kind: str,
    order: torch.Tensor | None = None,
) -> QuantisedMatrix:
    """The matrix of `blocks` [N, B, bytes] of the type `kind`, with its columns in `order`."""
    matrix = _unpacked(parts["blocks"], _UNPACK[kind])
    if order is None:
        return matrix
    order = order.to(matrix.codes.device)
    matrix = replace(matrix, codes=matrix.codes[:, order], permutation=order // matrix.block[1])
    return matrix.in_order()


def _unpacked(
    blocks: torch.Tensor, unpack_rows: Callable[[torch.Tensor], QuantisedMatrix]
) -> QuantisedMatrix:
    """All rows, some at a time: while codes are put together, several bytes are in memory for each."""
    rows, count, _ = blocks.shape
    step = max(1, AT_ONCE // count)
    first = unpack_rows(blocks[:step])
    if rows <= step:
        return first
    codes = first.codes.new_empty(rows, first.codes.shape[1])
    others = []
    for start in range(0, rows, step):
        part = unpack_rows(blocks[start : start + step])
        codes[start : start + step] = part.codes
        others.append(replace(part, codes=codes[:0]))
    return replace(QuantisedMatrix.joined(others) or first, codes=codes)  # all are alike


def _q4_0(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(_halves(blocks[..., 2:]), _half(blocks, 0), zero=8)


def _q4_1(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(_halves(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(_halves(blocks[..., 6:]) | _fifth(blocks[..., 2:6]), _half(blocks, 0), zero=16)


def _q5_1(blocks: torch.Tensor) -> QuantisedMatrix:
    codes = _halves(blocks[..., 8:]) | _fifth(blocks[..., 4:8])
    return _matrix(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(blocks[..., 2:].contiguous().view(torch.int8), _half(blocks, 0))


def _q2_k(blocks: torch.Tensor) -> QuantisedMatrix:
    scales, codes = blocks[..., :16], _fields(blocks[..., 16:80], 2, 32)
    return _matrix(codes, _half(blocks, 80) * (scales & 0xF), -_half(blocks, 82) * (scales >> 4))


def _q3_k(blocks: torch.Tensor) -> QuantisedMatrix:
    high = _fields(blocks[..., :32], 1, 32)
    codes = _fields(blocks[..., 32:96], 2, 32) | high << 2
    scales = _fields(blocks[..., 96:104], 4, 8) | _fields(blocks[..., 104:108], 2, 4) << 4
    return _matrix(codes, _half(blocks, 108) * (scales.float() - 32), zero=4)


def _q4_k(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(_fields(blocks[..., 16:], 4, 32), *_scales_and_offsets(blocks))


def _q5_k(blocks: torch.Tensor) -> QuantisedMatrix:
    codes = _fields(blocks[..., 48:], 4, 32) | _fields(blocks[..., 16:48], 1, 32) << 4
    return _matrix(codes, *_scales_and_offsets(blocks))


def _q6_k(blocks: torch.Tensor) -> QuantisedMatrix:
    codes = _fields(blocks[..., :128], 4, 64) | _fields(blocks[..., 128:192], 2, 32) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return _matrix(codes, _half(blocks, 208) * scales, zero=32)


def _mxfp4(blocks: torch.Tensor) -> QuantisedMatrix:
    scales = blocks[..., :1].contiguous().view(torch.float8_e8m0fnu).float()
    return replace(_matrix(_halves(blocks[..., 1:]), scales), values=e2m1(blocks.device))


def _iq4_nl(blocks: torch.Tensor) -> QuantisedMatrix:
    return _matrix(_halves(blocks[..., 2:]), _half(blocks, 0), levels=True)


def _iq4_xs(blocks: torch.Tensor) -> QuantisedMatrix:
    low = torch.stack((blocks[..., 4:8] & 0xF, blocks[..., 4:8] >> 4), dim=-1).flatten(-2)
    high = torch.stack([blocks[..., 2:4] >> place & 3 for place in (0, 2, 4, 6)], dim=-1).flatten(-2)
    scales = (low | high << 4).float() - 32
    codes = _halves(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))
    return _matrix(codes.flatten(-2), _half(blocks, 0) * scales, levels=True)


_UNPACK: Final[Mapping[str, Callable[[torch.Tensor], QuantisedMatrix]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def _matrix(
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    zero: int | None = None,
    levels: bool = False,
) -> QuantisedMatrix:
    """Of codes [N, B, numbers], and scales and offsets [N, B, groups]."""
    rows, count, numbers = codes.shape
    scales = scales.reshape(rows, -1)
    return QuantisedMatrix(
        codes.reshape(rows, -1),
        scales,
        (1, count * numbers // scales.shape[1]),
        zeros=None if zero is None else torch.full_like(scales, zero, dtype=torch.int8),
        values=torch.tensor(_LEVELS, device=codes.device) if levels else None,
        offsets=None if offsets is None else offsets.reshape(rows, -1),
        zero_scales=True,  # of a part whose numbers are all alike, or too small for float16
    )


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at a byte of each block: float32 [N, B, 1]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """[..., bytes] -> [..., 2 bytes]: the low halves of all bytes, then the high ones."""
    return torch.cat((packed & 0xF, packed >> 4), dim=-1)


def _fields(packed: torch.Tensor, bits: int, each: int) -> torch.Tensor:
    """[..., bytes] -> [..., codes]: of every `each` bytes the lowest bits, then the next ones, and so on."""
    parts = packed.reshape(*packed.shape[:-1], -1, each)
    fields = [parts >> place & (2**bits - 1) for place in range(0, 8, bits)]
    return torch.stack(fields, dim=-2).flatten(-3)


def _fifth(packed: torch.Tensor) -> torch.Tensor:
    """32 bits in four bytes, the lowest first -> the fifth bits of codes [..., 32]."""
    bits = torch.stack([packed >> place & 1 for place in range(8)], dim=-1)
    return bits.flatten(-2) << 4


def _scales_and_offsets(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of Q4_K and Q5_K [N, B, 8]: of each the first four have six bits of their own bytes, and the last four
    have their low bits in the last bytes, and their high bits above those of the first four."""
    first, second, last = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, last & 0xF | first >> 6 << 4), dim=-1)
    minimums = torch.cat((second & 63, last >> 4 | second >> 6 << 4), dim=-1)
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minimums
