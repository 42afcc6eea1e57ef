"""A block with a native router computes what the block computes; any other block stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.fused.mixture import Mixture
from serve_app.engine.kernels import native
from serve_app.engine.weights.formats import FORMATS
from tests.unit.engine.cpu.test_fused import MODELS, SHAPE

pytestmark = pytest.mark.skipif(native() is None, reason="no native kernels on this machine")

WIDTH = SHAPE["hidden_size"]


def qwen3(count: int, each: int, *, normalised: bool) -> PreTrainedModel:
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE | {"num_hidden_layers": 1},
            num_experts=count,
            num_experts_per_tok=each,
            moe_intermediate_size=24,
            norm_topk_prob=normalised,
        )
    )


def block_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32, weights: str = "none") -> nn.Module:
    fused: Any = accelerate_cpu(model.eval().to(dtype), dtype, weights=FORMATS[weights])
    return next(part.block for part in fused.modules() if isinstance(part, Mixture))


@pytest.mark.parametrize("weights", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("count", "each"), [(4, 4), (40, 3), (128, 8)])
def test_it_computes_what_the_block_does_and_a_row_does_not_depend_on_the_others(
    count: int, each: int, normalised: bool, dtype: torch.dtype, weights: str
) -> None:
    torch.manual_seed(0)
    made: Any = block_of(qwen3(count, each, normalised=normalised), dtype, weights)
    assert isinstance(made, NativeBlock)
    x = torch.randn(1, 70, WIDTH)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        want = made._block(x)
        got = made(x)
        torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=1e-5)
        try:
            for count in (1, 2, 5):  # threads
                torch.set_num_threads(count)
                assert torch.equal(made(x), got)
                assert torch.equal(made(x[:, 7:8]), got[:, 7:8])
                assert torch.equal(made(x[:, 3:20]), got[:, 3:20])
        finally:
            torch.set_num_threads(threads)


def test_rows_that_are_no_numbers_spoil_no_others() -> None:
    torch.manual_seed(0)
    made = block_of(qwen3(6, 2, normalised=True))
    x = torch.randn(1, 5, WIDTH)
    with torch.inference_mode():
        want = made(x)
        x[0, 2], x[0, 4] = torch.nan, torch.inf
        got = made(x)
    assert got[0, [2, 4]].isnan().all()
    assert all(torch.equal(got[0, row], want[0, row]) for row in (0, 1, 3))


def test_no_rows_are_no_outputs() -> None:
    made = block_of(qwen3(6, 2, normalised=True))
    assert made(torch.randn(1, 0, WIDTH)).shape == (1, 0, WIDTH)


@pytest.mark.parametrize("family", ["qwen2_moe with shared experts", "gpt_oss"])
def test_a_block_that_has_more_or_chooses_otherwise_stays_as_it_is(family: str) -> None:
    assert not isinstance(block_of(MODELS[family]()), NativeBlock)
