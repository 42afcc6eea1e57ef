"""Products over the codes of quantised checkpoints: native ones and plain torch give the same bits."""

from __future__ import annotations

from typing import Final

import pytest
import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.grouped import GroupedWeight, grouped_product
from serve_app.engine.kernels.native import Native
from tests.unit.engine.weights.test_quantized import _rows as rows_of

# Inputs and groups: half a unit, one unit, a unit too few for a step, several steps, whole rows.
SHAPES: Final = (
    *((50, 48, 16), (17, 32, 32), (33, 192, 96), (96, 256, 64), (40, 1024, 128)),
    *((16, 100, 128), (1, 4096, 4096)),
)
ROWS: Final = (1, 2, 3, 8, 9, 16, 17, 33)
FORMS: Final = (
    "4 bits",
    "8 bits",
    "4 bits in a table",
    "4 bits in another order",
    "4 bits with minimums",
    "8 bits with minimums",
)


@pytest.fixture
def kernels() -> Native:
    found = native()
    if found is None:
        pytest.skip("no native kernels here")
    return found


def weight_of(form: str, n: int, k: int, group: int) -> GroupedWeight:
    random = torch.Generator().manual_seed(n + k)
    groups = -(-k // group)
    bits = int(form[0])
    table = torch.randint(256, (16,), dtype=torch.uint8, generator=random) if "table" in form else None
    most = 256 if table is not None else 2**bits
    return GroupedWeight(
        torch.randint(2**bits, (n, k), dtype=torch.uint8, generator=random),
        torch.rand(n, groups, generator=random),
        torch.randint(most, (n, groups), dtype=torch.uint8, generator=random),
        group,
        bits,
        torch.randperm(k, generator=random).int() if "order" in form else None,
        table,
        torch.randn(n, groups, generator=random) if "minimums" in form else None,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_native_products_equal_plain_torch_bit_for_bit(
    kernels: Native, form: str, shape: tuple[int, int, int]
) -> None:
    n, k, group = shape
    weight = weight_of(form, n, k, group)
    packed = kernels.pack_quantized(weight, lasting=False)
    bias = torch.randn(-(-n // 16) * 16, generator=torch.Generator().manual_seed(0))
    for rows in ROWS:
        x = rows_of(rows, k)
        want = grouped_product(x, weight, bias[:n])
        assert torch.equal(kernels.linear(x, packed, bias, n, product=weight.product), want), rows
        alone = kernels.linear(x[-1:].contiguous(), packed, bias, n, product=weight.product)
        assert torch.equal(alone[0], want[-1])


@pytest.mark.parametrize("form", FORMS)
def test_the_product_is_that_of_the_weights_but_for_activations(form: str) -> None:
    weight = weight_of(form, 90, 1280, 64)
    x = rows_of(9, 1280)
    want = x.double() @ weight.dequantize().T
    error = (grouped_product(x, weight, None) - want).norm(dim=1) / want.norm(dim=1)
    assert error.max() < 0.02


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_not_finite_spoils_itself_only(kernels: Native, form: str) -> None:
    weight = weight_of(form, 20, 64, 32)
    packed = kernels.pack_quantized(weight, lasting=False)
    x = rows_of(20, 64)
    want = kernels.linear(x, packed, None, 20, product=weight.product)
    x[7, 3] = float("inf")
    got = kernels.linear(x, packed, None, 20, product=weight.product)
    assert got[7].isnan().all()
    others = torch.arange(20) != 7
    assert torch.equal(got[others], want[others])


def test_a_weight_of_another_size_is_refused(kernels: Native) -> None:
    weight = weight_of("4 bits", 20, 64, 32)
    packed = kernels.pack_quantized(weight, lasting=False)
    for outputs, inputs in ((36, 64), (20, 128)):
        with pytest.raises(ValueError, match="does not fit"):
            kernels.linear(torch.zeros(1, inputs), packed, None, outputs, product=weight.product)
