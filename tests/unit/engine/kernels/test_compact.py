"""Weights of twelve bits are those of sixteen: nothing is lost, whatever their exponents."""

from __future__ import annotations

import pytest
import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.compact import MOST_COMPACT
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import Product

HALVES = (Product.WIDENED, Product.PAIRS, Product.TILES)


@pytest.fixture
def kernels() -> Native:
    loaded = native()
    if loaded is None or not loaded.compact:
        pytest.skip("no native kernels here that read compact weights fast")
    return loaded


def _weight(kind: str, outputs: int, inputs: int) -> torch.Tensor:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)) * 0.02
    if kind == "pruned":
        weight[::2] = 0.0
        weight[1::4, ::3] = -0.0
    if kind == "outliers":  # in the first and last place of a tile, and many in one tile
        weight[0, 0] = 3e38
        weight[-1, -1] = -1e-38
        weight[1, : inputs // 2] = torch.logspace(-37, 37, inputs // 2)
    if kind == "scaled":  # each output has exponents of its own
        weight *= torch.logspace(-6, 6, outputs)[:, None]
    return weight.bfloat16()


@pytest.mark.parametrize("kind", ["normal", "pruned", "outliers"])
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 576), (200, 70), (16, 32), (100, 1056)])
def test_products_are_those_of_the_whole_weight_bit_for_bit(
    kernels: Native, kind: str, outputs: int, inputs: int
) -> None:
    weight = _weight(kind, outputs, inputs)
    whole = kernels.pack_weight(weight, lasting=False)
    compact = kernels.pack_compact(weight, lasting=False)
    assert compact is not None
    for product in filter(kernels.products[torch.bfloat16].__contains__, HALVES):
        for rows in (1, 2, 7, 8, 9, 12, 13, 16, 17, 20, 21, 25, 32, 33, 70):
            x = torch.randn(rows, inputs)
            want = kernels.linear(x, whole, None, outputs, product=product)
            assert torch.equal(kernels.linear(x, compact, None, outputs, product=product), want)


def test_weights_take_three_quarters(kernels: Native) -> None:
    weight = _weight("normal", 256, 1024)
    compact = kernels.pack_compact(weight, lasting=False)
    assert compact is not None
    assert 0.75 < compact.data.nbytes / weight.nbytes < 0.76


def test_weights_with_too_many_exponents_stay_as_they_are(kernels: Native) -> None:
    bits = torch.randint(-(2**15), 2**15, (64, 256), dtype=torch.int16)
    assert kernels.pack_compact(bits.view(torch.bfloat16), lasting=False) is None
    scaled = _weight("scaled", 64, 1024)  # the sixteen outputs of a panel have few enough
    compact = kernels.pack_compact(scaled, lasting=False)
    assert compact is not None
    assert compact.data.nbytes < MOST_COMPACT * scaled.nbytes


def test_another_shape_is_refused(kernels: Native) -> None:
    compact = kernels.pack_compact(_weight("normal", 48, 64), lasting=False)
    assert compact is not None
    for inputs, features in ((64, 47), (128, 48)):
        with pytest.raises(ValueError, match="does not fit"):
            kernels.linear(torch.randn(1, inputs), compact, None, features)
    with pytest.raises(ValueError, match="does not fit"):
        kernels.linear(torch.randn(1, 64), compact, None, 48, product=Product.FLOATS)
