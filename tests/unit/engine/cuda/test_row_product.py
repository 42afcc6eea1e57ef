"""The product of one row equals torch's, in shapes that fill no program, and takes nothing from behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.plain import load_on_gpu
from serve_app.engine.weights.row_product import AT_ONCE, row_product

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Sums are of float32 and rounded once; Triton's interpreter cuts off what does not fit into a bfloat16.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
KINDS = pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
# Outputs and inputs.
SHAPES = [
    (5, 48),
    (33, 100),
    (32, 64),  # fills its program
    (64, 48),  # as many rows as two programs have, but no whole ones
    (3, AT_ONCE),
    (7, AT_ONCE + 76),  # the second piece of a row is not whole
    (6, 2 * AT_ONCE),  # all pieces are whole, and programs too
    (5, 2 * AT_ONCE),
]


def numbers(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """So small that a sum of products is about one. What lies behind them is no number."""
    found = torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).flatten() / size[-1] ** 0.25
    surrounded = torch.cat([found, torch.full((2 * AT_ONCE,), torch.nan)])
    return surrounded.to(DEVICE, dtype)[: len(found)].view(size)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want.float(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@KINDS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_times_a_matrix_equals_torch(dtype: torch.dtype, shape: tuple[int, int], biased: bool) -> None:
    outputs, inputs = shape
    x, weight = numbers(1, inputs, dtype=dtype), numbers(outputs, inputs, dtype=dtype)
    bias = numbers(outputs, dtype=dtype) if biased else None
    want = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    close(row_product(x, weight, bias), want, dtype)


@pytest.mark.parametrize("size", [(2, 16), (1, 15), (1, 17), (16,), (1, 1, 16)], ids=str)
def test_anything_but_one_row_of_the_inputs_is_refused(size: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a matrix of \(8, 16\) got"):
        row_product(torch.zeros(size, device=DEVICE), torch.zeros(8, 16, device=DEVICE), None)


@KINDS
@pytest.mark.parametrize("biased", [False, True])
def test_linears_side_by_side_give_one_row_what_they_give_it_among_several(
    dtype: torch.dtype, biased: bool
) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(72, outputs, bias=biased and outputs != 9) for outputs in (20, 9, 12)]
    dense = PackedLinear.of(*(linear.to(DEVICE, dtype) for linear in linears), load=load_on_gpu)
    rows = numbers(72, 4, dtype=dtype).t()  # columns of a matrix: the numbers of a row are not neighbours
    among = dense.project(rows)
    assert among.shape == (4, 41)
    for row in range(4):
        close(dense.project(rows[row : row + 1]), among[row : row + 1], dtype)
