"""The codes of quantised checkpoints on a GPU, which products there read as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch.nn import functional

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.weights.decoding import STEP, Form
from serve_app.engine.weights.format import Weight
from serve_app.engine.weights.gpu_codes import FP4_VALUES, GpuCodes, packed

_NARROW: Final = (torch.bfloat16, torch.float16)  # types of scales, if those can be kept exactly


def load_codes_on_gpu(
    codes: QuantisedMatrix, bias: torch.Tensor | None, dtype: torch.dtype, *, lasting: bool = True
) -> Weight | None:
    """As `LoadCodes`. Activations are not rounded."""
    from serve_app.engine.weights.codes_product import CodesProduct

    found = gpu_codes_of(codes)
    return None if found is None else CodesProduct(found, bias, dtype)


def gpu_codes_of(matrix: QuantisedMatrix) -> GpuCodes | None:
    """The same numbers; None if there is no product for such codes."""
    found = _stored(matrix)
    if found is None or matrix.offsets is not None:
        return None
    form, codes, centre = found
    matrix = matrix.by_rows()
    scales, group, order = matrix.scales, matrix.block[1], matrix.permutation
    zeros = _zeros(matrix, centre)
    if zeros is not None and int(zeros.abs().amax()) > 128:
        return None
    if order is not None:
        group = _piece(order, STEP // form.codes)
        pieces, order = _side_by_side(order, group)
        if form is Form.INT4 and zeros is not None and not -8 <= int(zeros.amin()) <= int(zeros.amax()) < 8:
            return None  # no code means zero where groups are filled up
        codes = _ordered(codes, order, _nothing(form, codes, zeros), pieces.repeat_interleave(group))
        scales, order = scales[:, pieces], order.clamp(min=0)
        zeros = None if zeros is None else zeros[:, pieces]
    inputs = codes.shape[1]
    filled = -(-inputs // STEP) * STEP
    if group >= inputs and order is None:
        if zeros is None:
            return GpuCodes(form, packed(codes, form), scales[:, 0].float().contiguous(), inputs)
        group = filled
    if (STEP % group and group % STEP) or group % (STEP // form.codes):
        return None
    return GpuCodes(
        form,
        packed(codes, form),
        _by_groups(_narrow(scales), filled // group or 1),
        inputs,
        group,
        None if zeros is None else _by_groups(zeros.to(torch.int8), filled // group or 1),
        order,
    )


def _piece(groups: torch.Tensor, least: int) -> int:
    """The inputs of a piece of a group: a divisor of a step, at least `least`. `groups`: of each input."""
    size = math.gcd(STEP, *torch.bincount(groups.flatten()).tolist())
    return size if size % least == 0 else least


def _side_by_side(groups: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The group of each piece of `size` inputs, and the input for each place in those pieces; -1: none."""
    counts = torch.bincount(groups.flatten())
    pieces = -(-counts // size)
    inputs = groups.argsort(stable=True)
    of_group = groups[inputs].long()
    starts, firsts = (pieces.cumsum(0) - pieces) * size, counts.cumsum(0) - counts
    places = starts[of_group] + torch.arange(len(inputs), device=inputs.device) - firsts[of_group]
    order = inputs.new_full((int(pieces.sum()) * size,), -1).index_copy_(0, places, inputs)
    return torch.arange(len(counts), device=counts.device).repeat_interleave(pieces), order


def _nothing(form: Form, codes: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """The code that means zero in each group of each output [N, G], as uint8."""
    if zeros is None:
        return codes.new_full((1, 1), 8 if form is Form.INT4 else 0)
    return (zeros + 8).to(torch.uint8) if form is Form.INT4 else zeros.to(torch.int8).view(torch.uint8)


def _ordered(
    codes: torch.Tensor, order: torch.Tensor, nothing: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """The codes of the inputs in `order`, with those that mean zero in their group where there is none."""
    found = codes[:, order.clamp(min=0)]
    if bool((empty := order < 0).any()):
        found[:, empty] = nothing[:, groups[empty]] if nothing.shape[1] > 1 else nothing
    return found


def joined(parts: Sequence[GpuCodes]) -> GpuCodes | None:
    """The outputs of all parts, one after the other; None if the parts are not alike."""
    first = parts[0]
    kinds = {(each.form, each.inputs, each.group, each.order is None) for each in parts}
    if len(kinds) > 1 or first.order is not None:
        return None
    zeros = None
    if any(each.zeros is not None for each in parts):
        zeros = torch.cat(
            [each.scales.to(torch.int8).zero_() if each.zeros is None else each.zeros for each in parts], -1
        )
    return replace(
        first,
        words=torch.cat([each.words for each in parts]),
        scales=torch.cat([each.scales for each in parts], -1),  # of several types: the wider one
        zeros=zeros,
    )


def _stored(matrix: QuantisedMatrix) -> tuple[Form, torch.Tensor, int] | None:
    """The form of the codes, the codes as they are packed, and the code that means zero in that form."""
    codes = matrix.codes
    if matrix.values is not None:
        table = matrix.values.float().cpu()
        alike = table.shape == (16,) and torch.equal(table, FP4_VALUES)
        return (Form.FP4, codes.to(torch.uint8), 0) if alike and matrix.zeros is None else None
    if codes.dtype.is_floating_point:
        fits = codes.dtype == torch.float8_e4m3fn and matrix.zeros is None
        return (Form.FP8, codes.view(torch.uint8), 0) if fits else None
    least, most = (int(each) for each in torch.aminmax(codes))
    if least >= -8 and most <= 7:
        return Form.INT4, (codes + 8).to(torch.uint8), 0
    if least >= 0 and most <= 15:
        return Form.INT4, codes.to(torch.uint8), 8
    if least >= -128 and most <= 127:
        return Form.INT8, codes.to(torch.int8).view(torch.uint8), 0
    if least >= 0 and most <= 255:
        return Form.INT8, codes.to(torch.uint8) ^ 128, 128
    return None


def _zeros(matrix: QuantisedMatrix, centre: int) -> torch.Tensor | None:
    """The zeros of a matrix, less `centre`; None if all of them are 0."""
    zeros = matrix.scales.new_zeros(()) if matrix.zeros is None else matrix.zeros
    zeros = zeros.to(torch.int16) - centre
    return zeros.expand(matrix.scales.shape) if bool(zeros.any()) else None


def _by_groups(each: torch.Tensor, groups: int) -> torch.Tensor:
    """[N, G] -> [groups, N], with zeros for groups that have no inputs."""
    return functional.pad(each, (0, groups - each.shape[1])).T.contiguous()


def _narrow(scales: torch.Tensor) -> torch.Tensor:
    wide = scales.float()
    return next((found for dtype in _NARROW if torch.equal((found := scales.to(dtype)).float(), wide)), wide)
