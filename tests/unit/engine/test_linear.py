"""Packed linears equal plain ones, whatever multiplies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.linear import Method, PackedLinear, pack_linears

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(params=["on", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "off":
        monkeypatch.setenv(SWITCH, "off")
    return str(request.param)


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(64, 48, False), (37, 21, True), (80, 130, True)])
def test_a_packed_linear_equals_the_plain_one(
    kernels: str, method: Method, dtype: torch.dtype, inputs: int, outputs: int, bias: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    packed = PackedLinear(plain.weight, plain.bias, method)
    for shape in ((1, inputs), (17, inputs), (1, 9, inputs), (2, 3, inputs)):
        x = torch.randn(shape, dtype=dtype)
        got, want = packed(x), plain(x)
        assert got.shape == want.shape
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_bit_for_bit_alone_and_among_others(dtype: torch.dtype) -> None:
    if native() is None:
        pytest.skip("no native kernels on this machine")
    torch.manual_seed(0)
    packed = PackedLinear(torch.randn(200, 70, dtype=dtype), torch.randn(200, dtype=dtype), Method.NATIVE)
    x = torch.randn(40, 70, dtype=dtype)
    for rows in (1, 2, 7, 9, 23, 40):
        assert torch.equal(packed(x[:rows]), packed(x)[:rows])


def test_several_linears_side_by_side_give_their_outputs_side_by_side(kernels: str) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(32, 16), nn.Linear(32, 40, bias=False)]
    x = torch.randn(5, 32)
    want = torch.cat([linear(x) for linear in linears], dim=-1)
    torch.testing.assert_close(PackedLinear.of(*linears)(x), want, atol=1e-5, rtol=1e-5)


def test_packing_a_model_leaves_subclasses_and_shared_embeddings_alone(kernels: str) -> None:
    class Special(nn.Linear):
        pass

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.special = Special(16, 16)
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.SiLU())
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    before = model.embedding.weight.clone()
    assert pack_linears(model) == 2
    assert isinstance(model.head, PackedLinear)
    assert isinstance(model.inner[0], PackedLinear)
    assert type(model.special) is Special
    assert torch.equal(model.embedding.weight, before)


def test_a_linear_that_comes_out_wrong_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = native()
    if kernels is None:
        pytest.skip("no native kernels on this machine")
    right = type(kernels).linear
    monkeypatch.setattr(type(kernels), "linear", lambda *arguments: right(*arguments) + 1)
    plain = nn.Linear(32, 32)
    packed = PackedLinear(plain.weight, plain.bias, Method.NATIVE)
    assert packed.method is Method.PLAIN
    x = torch.randn(3, 32)
    torch.testing.assert_close(packed(x), plain(x))


def test_without_kernels_no_linear_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert PackedLinear(torch.randn(16, 16), None).method is not Method.NATIVE
