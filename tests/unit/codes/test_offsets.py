"""Offsets of matrices: added after the scales, kept by changes of rows and groups, taken by a CPU alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.kernels import native
from serve_app.engine.weights.gpu_own_codes import gpu_codes_of
from serve_app.engine.weights.own_codes import load_codes_on_cpu

ROWS, COLUMNS, GROUP = 6, 64, 32
DRAW: Final = torch.Generator().manual_seed(0)
MATRIX: Final = QuantisedMatrix(
    torch.randint(16, (ROWS, COLUMNS), dtype=torch.uint8, generator=DRAW),
    torch.rand(ROWS, COLUMNS // GROUP, generator=DRAW),
    (1, GROUP),
    offsets=-torch.rand(ROWS, COLUMNS // GROUP, generator=DRAW),
)
assert MATRIX.offsets is not None
NUMBERS: Final = MATRIX.codes * MATRIX.scales.repeat_interleave(GROUP, 1) + MATRIX.offsets.repeat_interleave(
    GROUP, 1
)


def numbers(matrix: QuantisedMatrix | None) -> torch.Tensor:
    assert matrix is not None
    return matrix.dequantise(torch.float32)


def test_they_are_added_after_the_scales_and_stay_with_their_rows_and_groups() -> None:
    assert torch.equal(numbers(MATRIX), NUMBERS)
    places = torch.tensor([4, 0, 5])
    assert torch.equal(numbers(MATRIX.rows(places)), NUMBERS[places])
    assert torch.equal(numbers(MATRIX.grouped(16)), NUMBERS)
    tall = replace(MATRIX, block=(ROWS, GROUP), scales=MATRIX.scales[:1], offsets=MATRIX.scales[:1])
    assert torch.equal(numbers(tall.by_rows()), numbers(tall))
    plain = replace(MATRIX, offsets=None)
    both = torch.cat((NUMBERS, numbers(plain)))
    assert torch.equal(numbers(QuantisedMatrix.joined([MATRIX, plain])), both)


def test_only_the_product_of_a_cpu_takes_them() -> None:
    whole = replace(MATRIX, block=(1, COLUMNS), scales=MATRIX.scales[:, :1], offsets=MATRIX.scales[:, :1])
    for matrix in (MATRIX, whole):
        assert gpu_codes_of(matrix) is None
        assert gpu_codes_of(replace(matrix, offsets=None)) is not None
        if native() is None:
            continue
        held = load_codes_on_cpu(matrix, None, torch.float32)
        assert held is not None
        x = torch.randn(5, COLUMNS, generator=DRAW)
        found, wanted = held.multiply(x, torch.float32), x @ numbers(matrix).T
        assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_a_minimum_that_is_not_finite_is_refused_and_a_scale_of_zero_may_be_meant() -> None:
    with pytest.raises(ValueError, match="a minimum is not finite"):
        replace(MATRIX, offsets=MATRIX.scales * torch.inf).check()
    empty = replace(MATRIX, scales=torch.zeros_like(MATRIX.scales))
    with pytest.raises(ValueError, match="a scale is zero"):
        empty.check()
    replace(empty, zero_scales=True).check()
