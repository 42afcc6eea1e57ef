"""Packed linears equal plain ones, whatever multiplies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.kernels.structs import Product
from serve_app.engine.weights.format import Load
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.panels import PanelWeight
from serve_app.engine.weights.plain import load_on_cpu
from serve_app.engine.weights.torch_weight import OnednnWeight, TorchWeight

LOADS = [load_on_cpu, OnednnWeight, TorchWeight]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(params=["on", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "off":
        monkeypatch.setenv(SWITCH, "off")
    return str(request.param)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(64, 48, False), (37, 21, True), (80, 130, True)])
def test_a_packed_linear_equals_the_plain_one(
    kernels: str, load: Load, dtype: torch.dtype, inputs: int, outputs: int, bias: bool
) -> None:
    if load is OnednnWeight and not OnednnWeight.supports(dtype):
        pytest.skip("oneDNN does not pack this type on this processor")
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    packed = PackedLinear(plain.weight, plain.bias, load)
    for shape in ((1, inputs), (17, inputs), (1, 9, inputs), (2, 3, inputs)):
        x = torch.randn(shape, dtype=dtype)
        got, want = packed(x), plain(x)
        assert got.shape == want.shape
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("load", LOADS)
def test_no_rows_give_no_rows(kernels: str, load: Load) -> None:
    packed = PackedLinear(torch.randn(33, 16), None, load)
    assert packed(torch.empty(1, 0, 16)).shape == (1, 0, 33)


@pytest.fixture(params=list(Product), ids=lambda product: product.name.lower())
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The type of weights that are multiplied that way, the only one left to the kernels."""
    kernels = native()
    if kernels is None:
        pytest.skip("no native kernels on this machine")
    for dtype, products in kernels.products.items():
        if request.param in products:
            monkeypatch.setattr(kernels, "products", kernels.products | {dtype: (request.param,)})
            return dtype
    pytest.skip("not on this processor")


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(2, 1), (70, 200), (64, 48), (100, 33), (31, 16), (576, 96), (1056, 40)]
)
@pytest.mark.parametrize("wide_output", [False, True])
def test_every_product_equals_the_plain_one_whatever_the_shape(
    product: torch.dtype, inputs: int, outputs: int, wide_output: bool
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(outputs, inputs, dtype=product), torch.randn(outputs, dtype=product)
    packed = PackedLinear(weight, bias)
    packed.wide_output = wide_output
    assert isinstance(packed.weight_kept, PanelWeight)
    for rows in (*range(1, 34), 47, 48, 49, 64, 70):
        x = torch.randn(rows, inputs, dtype=product)
        want = (x.double() @ weight.double().T + bias.double()).to(torch.float32 if wide_output else product)
        tolerance = 1e-4 if wide_output or product == torch.float32 else 1e-2
        torch.testing.assert_close(packed(x), want, atol=tolerance * inputs**0.5, rtol=tolerance)


def test_a_row_is_the_same_bit_for_bit_alone_and_among_others(product: torch.dtype) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(torch.randn(200, 70, dtype=product), torch.randn(200, dtype=product))
    x = torch.randn(70, 70, dtype=product)
    whole = packed(x)
    for rows in range(1, 70):
        assert torch.equal(packed(x[:rows]), whole[:rows])
        assert torch.equal(packed(x[rows:]), whole[rows:])


def test_a_row_of_a_long_prompt_is_the_same_bit_for_bit_alone(product: torch.dtype) -> None:
    torch.manual_seed(0)
    for inputs, outputs, rows in ((1056, 72, 530), (576, 200, 97)):  # several chunks of rows, and pieces
        weight, bias = torch.randn(outputs, inputs, dtype=product), torch.randn(outputs, dtype=product)
        packed = PackedLinear(weight, bias)
        x = torch.randn(rows, inputs, dtype=product)
        whole = packed(x)
        for row in (0, 15, 16, 32, 63, 95, rows // 2, rows - 17, rows - 1):
            assert torch.equal(packed(x[row : row + 1])[0], whole[row])
        threads = torch.get_num_threads()
        try:
            for count in (1, 5):
                torch.set_num_threads(count)
                assert torch.equal(packed(x), whole)
        finally:
            torch.set_num_threads(threads)


def test_several_linears_side_by_side_give_their_outputs_side_by_side(kernels: str) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(32, 16), nn.Linear(32, 40, bias=False)]
    x = torch.randn(5, 32)
    want = torch.cat([linear(x) for linear in linears], dim=-1)
    torch.testing.assert_close(PackedLinear.of(*linears)(x), want, atol=1e-5, rtol=1e-5)


def test_without_kernels_no_linear_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert not isinstance(PackedLinear(torch.randn(16, 16), None).weight_kept, PanelWeight)
