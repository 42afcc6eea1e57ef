"""The codes of quantised checkpoints on a CPU, by which native functions multiply as they are."""

from __future__ import annotations

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.kernels import native
from serve_app.engine.kernels.quantized import MAX_CODE, QuantizedWeight
from serve_app.engine.weights.format import Weight
from serve_app.engine.weights.int8_int4 import PackedCodes


def load_codes_on_cpu(
    codes: QuantisedMatrix, bias: torch.Tensor | None, dtype: torch.dtype, *, lasting: bool = True
) -> Weight | None:
    """As `LoadCodes`. Activations are rounded as for int8 weights."""
    kernels = native()
    if (
        kernels is None
        or codes.codes.dtype.is_floating_point
        or codes.values is not None
        or codes.offsets is not None
    ):
        return None
    rows = _one_scale_each(codes)
    return None if rows is None else PackedCodes(rows, bias, kernels, lasting=lasting)


def _one_scale_each(codes: QuantisedMatrix) -> QuantizedWeight | None:
    """Codes around zero, with one scale for each row, as int8; None if these are others."""
    if codes.block[1] < codes.codes.shape[1]:
        return None
    codes = codes.by_rows()
    numbers = codes.codes.to(torch.int16)
    if codes.zeros is not None:
        numbers -= codes.zeros.to(torch.int16)
    if int(numbers.abs().amax()) > MAX_CODE:
        return None
    return QuantizedWeight(numbers.to(torch.int8), codes.scales.flatten().float())
