"""The codes of quantised checkpoints on a CPU, by which native functions multiply as they are."""

from __future__ import annotations

from dataclasses import replace

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.kernels import native
from serve_app.engine.kernels.grouped import MOST_GROUP, UNIT, GroupedWeight
from serve_app.engine.kernels.quantized import MAX_CODE, QuantizedWeight
from serve_app.engine.weights.format import Weight
from serve_app.engine.weights.int8_int4 import PackedCodes

_MIDDLE, _MIDDLE_OF_FOUR = 128, 8  # of codes of eight and of four bits without a sign


def load_codes_on_cpu(
    codes: QuantisedMatrix, bias: torch.Tensor | None, dtype: torch.dtype, *, lasting: bool = True
) -> Weight | None:
    """As `LoadCodes`. Activations are rounded as for int8 weights."""
    kernels = native()
    if kernels is None or codes.codes.dtype.is_floating_point:
        return None
    found = one_scale_each(codes) or by_groups(codes)
    return None if found is None else PackedCodes(found, bias, kernels, lasting=lasting)


def one_scale_each(codes: QuantisedMatrix) -> QuantizedWeight | None:
    """Codes around zero, with one scale for each row, as int8; None if these are others."""
    if codes.block[1] < codes.codes.shape[1] or codes.values is not None or codes.offsets is not None:
        return None
    if int(codes.codes.amax()) < 16:
        return None
    codes = codes.by_rows()
    numbers = codes.codes
    if numbers.dtype != torch.int8 or codes.zeros is not None:
        numbers = numbers.to(torch.int16)
    if codes.zeros is not None:
        numbers = numbers - codes.zeros.to(torch.int16)
    least, most = (int(each) for each in torch.aminmax(numbers))
    if max(-least, most) > MAX_CODE:
        return None
    return QuantizedWeight(numbers.to(torch.int8), codes.scales.flatten().float())


def by_groups(codes: QuantisedMatrix) -> GroupedWeight | None:
    """Integers of up to eight bits with scales, zeros and minimums for groups, or four bits of a table of
    integers; None if these are others."""
    found = _in_order(codes.by_rows())
    if found is None:
        return None
    codes, order = found
    numbers, zeros, scales = codes.codes, codes.zeros, codes.scales.float()
    zeros = torch.zeros_like(scales) if zeros is None else zeros.float()
    table = None
    if codes.values is not None:
        values = codes.values.float()
        unit = values.abs()[values != 0].amin()
        table, scales, zeros = values / unit + _MIDDLE, scales * unit, zeros + _MIDDLE
        if len(table) != 16 or not _are_bytes(table):
            return None
        table = table.to(torch.uint8)
    least, most = (int(each) for each in torch.aminmax(numbers))
    if least < -_MIDDLE:
        return None
    if least < 0:
        middle = _MIDDLE_OF_FOUR if least >= -_MIDDLE_OF_FOUR and most < _MIDDLE_OF_FOUR else _MIDDLE
        # The low byte of a sum is that of the sum of low bytes.
        numbers = numbers.to(torch.int8).view(torch.uint8) + middle
        zeros, most = zeros + middle, most + middle
    if most > 255 or not _are_bytes(zeros):
        return None
    return GroupedWeight(
        numbers.to(torch.uint8),
        scales.contiguous(),
        zeros.to(torch.uint8),
        -(-codes.block[1] // UNIT) * UNIT if codes.block[1] > UNIT // 2 else UNIT // 2,
        4 if most < 16 else 8,
        order,
        table,
        None if codes.offsets is None else codes.offsets.float().contiguous(),
    )


def _in_order(codes: QuantisedMatrix) -> tuple[QuantisedMatrix, torch.Tensor | None] | None:
    """The same matrix with the columns of each group side by side, and the column of the original for each of
    them; None if the product takes no groups of their size."""
    columns, size = codes.codes.shape[1], min(codes.block[1], codes.codes.shape[1])
    if size != UNIT // 2 and (size % UNIT and size < columns):
        return None
    order = None
    if codes.permutation is not None:
        groups = codes.permutation.long()
        if columns % size or (torch.bincount(groups, minlength=columns // size) != size).any():
            return None
        order = groups.argsort(stable=True).int()
        codes = replace(codes, codes=codes.codes[:, order], permutation=None)
    codes = replace(codes, block=(1, size))
    if size <= MOST_GROUP:
        return codes, order
    fitting = [each for each in range(UNIT, MOST_GROUP + 1, UNIT) if size % each == 0 and columns % each == 0]
    return (codes.grouped(fitting[-1]), order) if fitting else None


def _are_bytes(numbers: torch.Tensor) -> bool:
    return bool(((numbers >= 0) & (numbers < 256) & (numbers == numbers.round())).all())
