"""Quantised linears: exact equality of all paths, and how near they are to the weights they come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight, product, quantize_rows
from serve_app.engine.kernels.structs import Product
from serve_app.engine.linear.packed import Method
from serve_app.engine.linear.quantized import QuantizedLinear, packer

# No multiples of 16, 32 and 64; one output; one input; more inputs than float32 adds up exactly.
SHAPES = ((50, 37), (1, 1), (16, 64), (333, 1000), (96, 4100))
ROWS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 70)


@pytest.fixture
def kernels() -> Native:
    found = native()
    if found is None:
        pytest.skip("no native kernels here")
    return found


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _rows(count: int, width: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)) * 3


def _weight(n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_products_equal_plain_torch_bit_for_bit(kernels: Native, shape: tuple[int, int]) -> None:
    n, k = shape
    weight = QuantizedWeight.of(_weight(n, k))
    packed = kernels.pack_quantized(weight, lasting=False)
    bias = torch.randn(-(-n // 16) * 16, generator=torch.Generator().manual_seed(0))
    for rows in ROWS:
        x = _rows(rows, k)
        for some in (None, bias):
            got = kernels.linear(x, packed, some, n, product=Product.INT8)
            assert torch.equal(got, product(x, weight, None if some is None else some[:n])), rows
        halved = kernels.linear(x, packed, bias, n, torch.bfloat16, Product.INT8)
        assert torch.equal(halved, product(x, weight, bias[:n]).bfloat16())


def test_the_product_is_that_of_the_codes_in_float64() -> None:
    weight = QuantizedWeight.of(_weight(90, 1300))
    x = _rows(9, 1300)
    codes, scales = quantize_rows(x)
    want = (codes.double() * scales.double()[:, None]) @ weight.dequantize().double().T
    assert (product(x, weight, None) - want).abs().max() < 1e-5 * want.abs().max()


def test_a_row_alone_gives_what_it_gives_among_others(kernels: Native) -> None:
    weight = QuantizedWeight.of(_weight(70, 200))
    packed = kernels.pack_quantized(weight, lasting=False)
    x = _rows(40, 200)
    together = kernels.linear(x, packed, None, 70, product=Product.INT8)
    for row in (0, 15, 16, 39):
        alone = kernels.linear(x[row : row + 1].contiguous(), packed, None, 70, product=Product.INT8)
        assert torch.equal(alone[0], together[row])


def test_a_row_that_is_not_finite_spoils_itself_only(kernels: Native) -> None:
    weight = QuantizedWeight.of(_weight(20, 70))
    packed = kernels.pack_quantized(weight, lasting=False)
    for rows in (3, 20):
        x = _rows(rows, 70)
        x[0, 69], x[1, 3], x[2] = float("inf"), float("nan"), 0.0
        got = kernels.linear(x, packed, None, 20, product=Product.INT8)
        assert got[:2].isnan().all()
        assert not got[2].any()
        assert torch.equal(got[3:], product(x[3:], weight, None))


def test_codes_are_near_the_weights() -> None:
    weight = _weight(64, 512)
    assert (QuantizedWeight.of(weight).dequantize() - weight).norm() < 0.01 * weight.norm()


def test_weights_of_zeros_stay_zeros() -> None:
    weight = _weight(20, 130)
    weight[3] = 0
    assert not QuantizedWeight.of(weight).dequantize()[3].any()


def test_a_layer_gives_the_same_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    linears = (nn.Linear(100, 40).bfloat16(), nn.Linear(100, 24, bias=False).bfloat16())
    fast = packer(Quantization.INT8)(*linears)
    monkeypatch.setenv(SWITCH, "off")
    slow = packer(Quantization.INT8)(*linears)
    assert slow.method is Method.PLAIN
    assert isinstance(slow, QuantizedLinear)
    x = _rows(9, 100)
    assert torch.equal(fast.project(x), slow.project(x))
    assert torch.equal(fast(x.bfloat16()), slow(x.bfloat16()))
    assert fast(x.bfloat16()).dtype == torch.bfloat16


def test_layers_take_fewer_bytes() -> None:
    linear = nn.Linear(512, 256, bias=False).bfloat16()
    assert packer(None)(linear).num_bytes > 1.9 * packer(Quantization.INT8)(linear).num_bytes


def test_codes_that_do_not_fit_are_refused(kernels: Native) -> None:
    weight = QuantizedWeight.of(_weight(16, 70))
    with pytest.raises(ValueError, match="scales do not fit"):
        kernels.pack_quantized(QuantizedWeight(weight.codes, weight.scales[:1]))
    packed = kernels.pack_quantized(weight, lasting=False)
    with pytest.raises(ValueError, match="does not fit the input"):
        kernels.linear(_rows(1, 70), packed, None, 32, product=Product.INT8)
