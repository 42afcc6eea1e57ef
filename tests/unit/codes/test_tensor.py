"""A coded weight keeps its codes where torch only arranges it, and has plain numbers for everything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.codes.tensor import CodedTensor, plain_weights

CPU = torch.device("cpu")


class Kept:
    """A matrix in memory, as a source."""

    def __init__(self, rows: int, columns: int, group: int = 16, bits: int = 4) -> None:
        random = torch.Generator().manual_seed(rows + group)
        self.read = 0
        self._matrix = QuantisedMatrix(
            torch.randint(2**bits, (rows, columns), dtype=torch.uint8, generator=random),
            torch.rand(rows, columns // group, generator=random),
            (1, group),
            zeros=torch.randint(2**bits, (rows, columns // group), generator=random),
        )

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._matrix.codes.shape
        return rows, columns

    def codes(self) -> QuantisedMatrix:
        self.read += 1
        return self._matrix

    def write_to(self, out: torch.Tensor) -> None:
        self.read += 1
        self._matrix.write_to(out)


def coded(*rows: int, group: int = 16) -> CodedTensor:
    sources = [Kept(each, 64, group) for each in rows]
    return CodedTensor.of(sources, torch.float32, CPU, experts=len(rows) > 1)


ARRANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detach": lambda weight: weight.detach(),
    "to": lambda weight: weight.to("cpu", torch.bfloat16),
    "expert": lambda weight: weight[torch.tensor(1)],
    "transpose": lambda weight: weight.transpose(1, 2).contiguous(),
    "mT of an expert": lambda weight: weight[0].T,
    "unbind": lambda weight: list(weight)[1],
    "stack": lambda weight: torch.stack(list(weight), dim=0),
    "rows of experts": lambda weight: torch.cat([weight, weight], dim=1),
    "rows of turned experts": lambda weight: torch.cat([weight.mT, weight.mT], dim=2),
    "experts": lambda weight: torch.cat([weight, weight], dim=0),
    "rows": lambda weight: torch.cat(list(weight)),
    "some rows": lambda weight: torch.cat(list(weight))[torch.tensor([9, 0, 30])],
}


@pytest.mark.parametrize("name", ARRANGED)
def test_arranging_keeps_codes(name: str) -> None:
    weight = coded(24, 24)
    arranged = ARRANGED[name](weight)
    assert isinstance(arranged, CodedTensor)
    assert not any(each.read for each in weight.sources if isinstance(each, Kept))
    want = ARRANGED[name](weight.numbers())
    assert arranged.shape == want.shape
    assert arranged.dtype == want.dtype
    assert torch.equal(arranged.numbers(), want.to(torch.float32).to(arranged.dtype))


def test_everything_else_gets_plain_numbers() -> None:
    weight, x = coded(24), torch.randn(3, 64)
    assert torch.equal(functional.linear(x, weight), functional.linear(x, weight.numbers()))
    assert torch.equal(weight + 1, weight.numbers() + 1)
    assert torch.equal(weight[3:5], weight.numbers()[3:5])
    assert type(weight.float()) is torch.Tensor
    assert weight.device == CPU
    assert torch.equal(weight.new_zeros(2), torch.zeros(2))


def test_joined_rows_have_common_groups_or_none() -> None:
    alike = torch.cat([coded(24), coded(8, group=32)])
    assert isinstance(alike, CodedTensor)
    matrix = alike.matrix()
    assert matrix is not None
    assert matrix.block == (1, 16)
    assert torch.equal(matrix.dequantise(torch.float32), alike.numbers())
    plain = torch.randn(5, 64)
    order = torch.arange(28, -1, -1)
    mixed = torch.cat([coded(24), plain])[order]
    assert isinstance(mixed, CodedTensor)
    assert mixed.matrix() is None
    (first, second), places = mixed.parts()
    assert isinstance(first, CodedTensor)
    assert second is plain
    assert torch.equal(places, order)
    assert torch.equal(mixed.numbers(), torch.cat([first.numbers(), plain])[order])


def test_plain_weights_take_the_place_of_codes_and_stay_tied() -> None:
    one, other = nn.Linear(64, 24, bias=False), nn.Linear(64, 24)
    one.weight = other.weight = nn.Parameter(coded(24), requires_grad=False)
    model = nn.Sequential(one, other).to("cpu")
    assert isinstance(one.weight, CodedTensor)
    want = one.weight.numbers()
    assert plain_weights(model) == (1, want.nbytes)
    assert one.weight is other.weight
    assert torch.equal(one.weight, want)
    assert plain_weights(model) == (0, 0)
