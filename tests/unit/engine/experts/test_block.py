"""A block with a native router computes what the block computes; any other block stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DeepseekV2Config, DeepseekV3Config, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.cpu.packing import packed_block
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.experts.packed import PLACE
from serve_app.engine.experts.shared import SharedExpert
from serve_app.engine.kernels import native
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.mixtures import mixture

pytestmark = pytest.mark.skipif(native() is None, reason="no native kernels on this machine")

WIDTH = 48
SHAPE: Mapping[str, Any] = {"hidden_size": WIDTH, "moe_intermediate_size": 24}


def qwen3(count: int, each: int, *, normalised: bool) -> tuple[nn.Module, Any]:
    config = Qwen3MoeConfig(**SHAPE, num_experts=count, num_experts_per_tok=each, norm_topk_prob=normalised)
    return Qwen3MoeSparseMoeBlock(config), config


def qwen2() -> tuple[nn.Module, Any]:
    """With a shared expert of its own size, behind a gate."""
    config = Qwen2MoeConfig(
        **SHAPE, num_experts=12, num_experts_per_tok=3, shared_expert_intermediate_size=40
    )
    return Qwen2MoeSparseMoeBlock(config), config


def deepseek3(*, normalised: bool = True, groups: int = 4) -> tuple[nn.Module, Any]:
    config = DeepseekV3Config(
        **SHAPE,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_group=groups,
        topk_group=min(groups, 2),
        n_shared_experts=2,
        norm_topk_prob=normalised,
        routed_scaling_factor=2.5,
    )
    return DeepseekV3MoE(config), config


def deepseek2() -> tuple[nn.Module, Any]:
    """Of a group, the best expert alone counts."""
    config = DeepseekV2Config(
        **SHAPE,
        num_attention_heads=4,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        n_shared_experts=1,
        routed_scaling_factor=16.0,
    )
    return DeepseekV2Moe(config), config


BLOCKS: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "qwen3, all": lambda: qwen3(4, 4, normalised=True),
    "qwen3": lambda: qwen3(40, 3, normalised=True),
    "qwen3, plain weights": lambda: qwen3(128, 8, normalised=False),
    "qwen2": qwen2,
    "deepseek3": deepseek3,
    "deepseek3, plain weights": lambda: deepseek3(normalised=False),
    "deepseek3 without groups": lambda: deepseek3(groups=1),
    "deepseek2": deepseek2,
}


def made(
    make: Callable[[], tuple[nn.Module, Any]], dtype: torch.dtype = torch.float32, weights: str = "none"
) -> tuple[NativeBlock | None, nn.Module]:
    """The native form of a random block, and the packed block itself in float32."""
    torch.manual_seed(0)
    block, config = make()
    config._experts_implementation = "eager"
    with torch.no_grad():
        for part in (*block.parameters(), *block.buffers()):
            part.normal_(0, part.shape[-1] ** -0.5)
    block = block.eval().to(dtype)
    load = FORMATS[weights].loads["cpu"]

    def pack(*linears: nn.Linear, rows: torch.Tensor | None = None) -> PackedLinear:
        return PackedLinear.of(*linears, rows=rows, load=load)

    packed, kernels = packed_block(block, config, FORMATS[weights], pack), native()
    assert kernels is not None
    for module in packed.modules():
        if isinstance(module, PackedLinear):
            module.wide_output = True
    return NativeBlock.of(packed, config, kernels), packed


@pytest.mark.parametrize("weights", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_it_computes_what_the_block_does_and_a_row_does_not_depend_on_the_others(
    name: str, dtype: torch.dtype, weights: str
) -> None:
    block, packed = made(BLOCKS[name], dtype, weights)
    assert block is not None
    x = torch.randn(1, 270, WIDTH)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        got = block(x)
        want = packed(x[:, :70])
        torch.testing.assert_close(got[:, :70], want, atol=1e-5 * float(want.abs().max()), rtol=1e-5)
        try:
            for count in (1, 2, 5):  # threads
                torch.set_num_threads(count)
                for rows in (slice(0, 270), slice(7, 8), slice(3, 73)):
                    assert torch.equal(block(x[:, rows]), got[:, rows])
        finally:
            torch.set_num_threads(threads)


def test_a_shared_expert_that_the_caller_computes_makes_the_same_bits() -> None:
    block, packed = made(qwen2, torch.bfloat16)
    assert block is not None
    x = torch.randn(5, WIDTH)
    shared = next(part for part in packed.modules() if isinstance(part, SharedExpert))
    kernels: Any = native()
    with torch.inference_mode():
        assert torch.equal(kernels.run_mixture(block.native, x, shared(x)), block(x))
        with pytest.raises(ValueError, match="share"):
            kernels.run_mixture(block.native, x, shared(x)[1:])


@pytest.mark.parametrize("name", ["qwen3", "deepseek3"])
def test_rows_that_are_no_numbers_spoil_no_others(name: str) -> None:
    block, _ = made(BLOCKS[name])
    assert block is not None
    x = torch.randn(1, 5, WIDTH)
    with torch.inference_mode():
        want = block(x)
        x[0, 2], x[0, 4] = torch.nan, torch.inf
        got = block(x)
    assert got[0, [2, 4]].isnan().all()
    assert all(torch.equal(got[0, row], want[0, row]) for row in (0, 1, 3))


def test_no_rows_are_no_outputs() -> None:
    block, _ = made(qwen2)
    assert block is not None
    assert block(torch.randn(1, 0, WIDTH)).shape == (1, 0, WIDTH)


@pytest.mark.parametrize(
    "wrong",
    [{"each": 9}, {"each": 0}, {"groups": 5}, {"kept": 5}, {"best": 3}, {"correction": torch.zeros(3)}],
)
def test_a_router_that_cannot_choose_so_is_refused(wrong: dict[str, Any]) -> None:
    block, _ = made(deepseek3)
    assert block is not None
    own = block.native
    with pytest.raises(ValueError, match=r"cannot|does not fit"):
        type(own).of(own.struct.router.linear, replace(own.routing, **wrong), own.experts)


@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v3",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "glm4_moe",
        "hunyuan_v1_moe",
        "minimax_m2",
        "mixtral",
        "mimo_v2_flash",
        "olmoe",
        "qwen2_moe",
        "qwen3_5_moe_text",
        "qwen3_next",
        "solar_open",
    ],
)
def test_the_blocks_of_a_family_are_native(family: str) -> None:
    model = accelerate_cpu(mixture(family), torch.float32)
    blocks = [part for part in model.modules() if any(hasattr(each, PLACE) for each in part.children())]
    native_ones = [part for part in model.modules() if isinstance(part, NativeBlock)]
    assert blocks
    assert len(native_ones) == len(blocks)


class _Biased(DeepseekV3MoE):
    """Adds more than a native router knows of."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(hidden_states)
        return made + 0.01 * hidden_states


class _Reversed(Qwen3MoeSparseMoeBlock):
    """Chooses the experts with the least scores."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(-hidden_states)
        return made


@pytest.mark.parametrize(
    ("make", "kind"), [(deepseek3, _Biased), (qwen2, None), (BLOCKS["qwen3"], _Reversed)]
)
def test_a_block_that_has_more_or_chooses_otherwise_stays_as_it_is(
    make: Callable[[], tuple[nn.Module, Any]], kind: type[nn.Module] | None
) -> None:
    def other() -> tuple[nn.Module, Any]:
        block: Any
        block, config = make()
        if kind is None:
            block.more = nn.Linear(WIDTH, 5)
        else:
            block.__class__ = kind
        return block, config

    assert made(other)[0] is None
