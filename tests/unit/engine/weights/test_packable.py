"""Only linears that a model calls, and whose weight nobody reads, may lose their weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.weights.packable import packable_linears


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).to(self.down.weight.dtype))


class Model(nn.Module):
    """Multiplies by the router's weight itself, asks `down` for its type, and reaches one expert only."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2, bias=False)
        self.experts = nn.ModuleList([Expert(), Expert()])
        self.head = nn.Linear(4, 8)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional.linear(x, self.router.weight)
        return self.head(self.experts[0](x))


def test_what_is_read_and_what_is_never_called_is_left_alone() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 4)
    want = model(x)
    got: list[torch.Tensor] = []
    found = packable_linears(model, lambda: got.append(model(x)))
    names = {name for name, part in model.named_modules() if part in found}
    assert names == {"experts.0.up", "experts.1.up", "head"}  # the second expert's as the first one's
    assert torch.equal(got[0], want)
    assert {type(part) for part in found} == {nn.Linear}


def test_linears_are_themselves_again_after_an_error() -> None:
    model = Model()
    with pytest.raises(RuntimeError):
        packable_linears(model, lambda: model(torch.zeros(3, 5)))
    assert type(model.head) is nn.Linear
    assert model.head.weight.shape == (8, 4)
