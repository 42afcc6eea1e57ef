"""Packed experts compute what transformers' module does, by any kernels and in any format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from serve_app.engine.experts.packed import PLACE, has_experts, pack_experts, unpack_experts
from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.mixtures import mixture

ROWS = 13


@pytest.fixture(params=["native", "off"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "off":
        monkeypatch.setenv(SWITCH, "off")
    elif native() is None:
        pytest.skip("no C++ compiler on this machine")


def experts_of(family: str, dtype: torch.dtype = torch.float32) -> Any:
    found = next(module for module in mixture(family, dtype).modules() if has_experts(module))
    found.config._experts_implementation = "eager"
    return found


def rows(experts: Any, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    width = experts.down_proj.shape[2 if experts.is_transposed else 1]
    chosen = torch.stack([torch.randperm(4, generator=random)[:2] for _ in range(ROWS)])
    return torch.randn(ROWS, width, generator=random), chosen, torch.rand(ROWS, 2, generator=random)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_they_compute_what_the_module_does(family: str, dtype: torch.dtype) -> None:
    experts = experts_of(family, dtype)
    x, chosen, weights = rows(experts)
    given = x.to(dtype), chosen, weights.to(dtype)
    with torch.inference_mode():
        want = experts(*given)
        kept = pack_experts(experts, PackedLinear.of)
        assert not list(experts.parameters())
        got = experts(*given)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got, want, atol=tolerance * float(want.abs().max()), rtol=0)
        assert got.dtype == dtype
        unpack_experts(experts, kept)
        assert torch.equal(experts(*given), want)
    assert not hasattr(experts, PLACE)


@pytest.mark.usefixtures("_kernels")
def test_a_number_beyond_the_experts_chooses_none() -> None:
    experts = experts_of("qwen3_moe")
    x, chosen, weights = rows(experts)
    with torch.inference_mode():
        pack_experts(experts, PackedLinear.of)
        chosen[:, 1] = 4
        want = experts(x, chosen[:, :1].contiguous(), weights[:, :1].contiguous())
        assert torch.equal(experts(x, chosen, weights), want)
        chosen[:] = 4
        assert not experts(x, chosen, weights).any()


@pytest.mark.skipif(native() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if "cpu" in each.loads])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_the_others(name: str, threads: int) -> None:
    experts, before = experts_of("gpt_oss"), torch.get_num_threads()
    load = FORMATS[name].loads["cpu"]

    def pack(*linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        return PackedLinear.of(*linears, rows=rows, load=load)

    x, chosen, weights = rows(experts)
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            pack_experts(experts, pack)
            whole = experts(x, chosen, weights)
            for size in (1, 2, 5):
                parts = zip(x.split(size), chosen.split(size), weights.split(size), strict=True)
                assert torch.equal(torch.cat([experts(*part) for part in parts]), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(native() is None, reason="no C++ compiler on this machine")
def test_rows_and_choices_that_do_not_fit_are_refused() -> None:
    experts = experts_of("qwen3_moe")
    x, chosen, weights = rows(experts)
    with torch.inference_mode():
        pack_experts(experts, PackedLinear.of)
        for wrong in (
            (x[:, :-2], chosen, weights),
            (x, chosen[1:], weights[1:]),
            (x, chosen, weights[:, :1]),
        ):
            with pytest.raises(ValueError, match="do not fit the experts"):
                experts(*wrong)
