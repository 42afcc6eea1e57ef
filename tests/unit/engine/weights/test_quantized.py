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
from serve_app.engine.weights.formats import FORMATS, Packer
from serve_app.engine.weights.int8_int4 import INT4
from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.tiny_models import tiny_model

# No multiples of 16, 32 and 64; one output; one input; more inputs than float32 adds up exactly.
SHAPES = ((50, 37), (1, 1), (16, 64), (333, 1000), (96, 4100))
ROWS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 70)


@pytest.fixture
def kernels() -> Native:
    found = native()
    if found is None:
        pytest.skip("no native kernels here")
    return found


@pytest.fixture(params=Quantization)
def kind(request: pytest.FixtureRequest) -> Quantization:
    found: Quantization = request.param
    return found


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _rows(count: int, width: int) -> torch.Tensor:
    """Of every three rows, one has a few large numbers, and one has one larger than all codes reach."""
    random = torch.Generator().manual_seed(count)
    x = torch.randn(count, width, generator=random) * 3
    large = torch.rand(count, width, generator=random) < 0.02
    x[1::3] = torch.where(large[1::3], x[1::3] * 90, x[1::3])
    x[2::3, width // 2] *= 1e6
    return x


def _packed(kind: Quantization, *linears: nn.Linear) -> PackedLinear:
    return PackedLinear.of(*linears, load=FORMATS[kind].loads["cpu"])


def _weight(n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_products_equal_plain_torch_bit_for_bit(
    kernels: Native, shape: tuple[int, int], kind: Quantization
) -> None:
    n, k = shape
    weight = QuantizedWeight.of(_weight(n, k), kind)
    packed = kernels.pack_quantized(weight, lasting=False)
    bias = torch.randn(-(-n // 16) * 16, generator=torch.Generator().manual_seed(0))
    for rows in ROWS:
        x = _rows(rows, k)
        for some in (None, bias):
            got = kernels.linear(x, packed, some, n, product=weight.product)
            assert torch.equal(got, product(x, weight, None if some is None else some[:n])), rows
        halved = kernels.linear(x, packed, bias, n, torch.bfloat16, weight.product)
        assert torch.equal(halved, product(x, weight, bias[:n]).bfloat16())


def test_the_product_is_that_of_the_codes_in_float64(kind: Quantization) -> None:
    weight = QuantizedWeight.of(_weight(90, 1300), kind)
    x = _rows(9, 1300)
    codes, scales = quantize_rows(x)
    want = (codes.double() * scales.double()[:, None]) @ weight.dequantize().double().T
    assert (product(x, weight, None) - want).abs().max() < 1e-5 * want.abs().max()


def test_a_few_large_inputs_cost_the_others_no_bits(kind: Quantization) -> None:
    weight = QuantizedWeight.of(_weight(90, 1300), kind)
    small = torch.randn(9, 1300, generator=torch.Generator().manual_seed(0))
    large = torch.zeros_like(small)
    large[:, ::300] = torch.linspace(-50, 90, 5)
    want = small.double() @ weight.dequantize().double().T
    beside = (small + large).double() @ weight.dequantize().double().T
    assert (product(small, weight, None) - want).norm() < 0.01 * want.norm()
    assert (product(small + large, weight, None) - beside).norm() < 0.02 * want.norm()
    codes, _ = quantize_rows(small + large)
    assert codes.abs().max() > 127
    assert (codes.abs() > 127).sum(1).max() <= 5


def test_a_row_of_even_numbers_has_codes_of_a_byte() -> None:
    codes, _ = quantize_rows(torch.randn(9, 1300, generator=torch.Generator().manual_seed(0)))
    assert codes.abs().amax(1).tolist() == [127] * 9
    codes, _ = quantize_rows(torch.tensor([[1e30] + [1.0] * 3000]))
    assert codes[0, 0] == 127 * 257


def test_rows_at_the_edge_of_reach_have_the_codes_of_plain_torch(kernels: Native, kind: Quantization) -> None:
    """Native functions look for the edge by a sum that is not exact, and only where it is far away."""
    weight = QuantizedWeight.of(_weight(70, 200), kind)
    packed = kernels.pack_quantized(weight, lasting=False)
    x = torch.ones(300, 200)
    # A row of ones has the mean (199 + p) / 200, and p = 8 means is p = 1592 / 192.
    x[:, 77] = torch.linspace(0.99, 1.01, 300) * 1592 / 192
    beyond = torch.tensor([[3e38] * 2 + [1.0] * 198, [3e38] * 200, [1e-30] + [0.0] * 199, [0.0] * 200])
    for rows in (x, x * 1e-4, beyond):
        got = kernels.linear(rows, packed, None, 70, product=weight.product)
        assert torch.equal(got.nan_to_num(7.0), product(rows, weight, None).nan_to_num(7.0))
    codes, _ = quantize_rows(x)
    assert {False, True} == set((codes.amax(1) > 127).tolist())  # the edge lies between


def test_a_row_alone_gives_what_it_gives_among_others(kernels: Native, kind: Quantization) -> None:
    weight = QuantizedWeight.of(_weight(70, 200), kind)
    packed = kernels.pack_quantized(weight, lasting=False)
    x = _rows(40, 200)
    together = kernels.linear(x, packed, None, 70, product=weight.product)
    for row in (0, 15, 16, 39):
        alone = kernels.linear(x[row : row + 1].contiguous(), packed, None, 70, product=weight.product)
        assert torch.equal(alone[0], together[row])


def test_a_row_that_is_not_finite_spoils_itself_only(kernels: Native, kind: Quantization) -> None:
    weight = QuantizedWeight.of(_weight(20, 70), kind)
    packed = kernels.pack_quantized(weight, lasting=False)
    for rows in (3, 20):
        x = _rows(rows, 70)
        x[0, 69], x[1, 3], x[2] = float("inf"), float("nan"), 0.0
        got = kernels.linear(x, packed, None, 20, product=weight.product)
        assert got[:2].isnan().all()
        assert not got[2].any()
        assert torch.equal(got[3:], product(x[3:], weight, None))


@pytest.mark.parametrize(("kind", "error"), [(Quantization.INT8, 0.01), (Quantization.INT4, 0.0625)])
def test_codes_are_near_the_weights(kind: Quantization, error: float) -> None:
    weight = _weight(64, 512)
    kept = weight.clone()
    assert (QuantizedWeight.of(weight, kind).dequantize() - weight).norm() < error * weight.norm()
    assert torch.equal(weight, kept)


def test_sixteen_codes_of_int4_are_multiples_of_a_step_minus_a_least() -> None:
    weight = _weight(40, 500)
    weight[:5] += 3  # sixteen of one sign
    weight[5:10] -= 3
    weight[10:15, ::70] *= 50
    found = QuantizedWeight.of(weight, Quantization.INT4)
    assert found.groups is not None
    step, least = found.groups.int().repeat_interleave(16, 1)[:, :500].unbind(2)
    q, rest = (found.codes + least).div(step, rounding_mode="floor"), (found.codes + least) % step
    assert not rest.any()
    assert [int(q.min()), int(q.max())] == [0, 15]
    assert 1 <= int(step.min()) <= int(step.max()) <= 17
    assert int(least.max()) <= 127
    assert found.num_bytes == 40 * 500 + 40 * 4 + 40 * 32 * 2


def test_weights_of_zeros_stay_zeros(kind: Quantization) -> None:
    weight = _weight(20, 130)
    weight[3] = 0
    assert not QuantizedWeight.of(weight, kind).dequantize()[3].any()


def test_a_layer_gives_the_same_with_and_without_kernels(
    monkeypatch: pytest.MonkeyPatch, kind: Quantization
) -> None:
    torch.manual_seed(0)
    linears = (nn.Linear(100, 40).bfloat16(), nn.Linear(100, 24, bias=False).bfloat16())
    fast = _packed(kind, *linears)
    monkeypatch.setenv(SWITCH, "off")
    slow = _packed(kind, *linears)
    assert fast.describe() is not None
    assert slow.describe() is None
    x = _rows(9, 100)
    assert torch.equal(fast.project(x), slow.project(x))
    assert torch.equal(fast(x.bfloat16()), slow(x.bfloat16()))
    assert fast(x.bfloat16()).dtype == torch.bfloat16


def test_layers_take_fewer_bytes() -> None:
    linear = nn.Linear(512, 256, bias=False).bfloat16()
    half, least = (_packed(kind, linear).num_bytes for kind in Quantization)
    assert linear.weight.nbytes > 1.9 * half > 1.9 * 1.5 * least


def test_what_is_sensitive_is_int8_in_an_int4_model() -> None:
    model = tiny_model("llama")
    pack, layer = Packer(model, INT4, "cpu"), model.get_decoder().layers[0]
    for linear in (layer.self_attn.q_proj, layer.self_attn.v_proj, model.get_output_embeddings()):
        assert pack(linear).num_bytes == _packed(Quantization.INT8, linear).num_bytes
    for linear in (layer.self_attn.o_proj, layer.mlp.up_proj):
        assert pack(linear).num_bytes == _packed(Quantization.INT4, linear).num_bytes


def test_codes_that_do_not_fit_are_refused(kernels: Native) -> None:
    weight = QuantizedWeight.of(_weight(16, 70), Quantization.INT4)
    assert weight.groups is not None
    with pytest.raises(ValueError, match="scales do not fit"):
        kernels.pack_quantized(QuantizedWeight(weight.codes, weight.scales[:1]))
    with pytest.raises(ValueError, match="steps and leasts do not fit"):
        kernels.pack_quantized(QuantizedWeight(weight.codes, weight.scales, weight.groups[:, :4]))
    packed = kernels.pack_quantized(weight, lasting=False)
    with pytest.raises(ValueError, match="does not fit the input"):
        kernels.linear(_rows(1, 70), packed, None, 32, product=Product.INT4)
    with pytest.raises(ValueError, match="does not fit the input"):
        kernels.linear(_rows(1, 70), packed, None, 16, product=Product.INT8)
