"""A model whose layers stay transformers' own is packed whole, or not at all."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.exact import Exact, exact
from serve_app.engine.experts.packed import PLACE
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.stand_ins import LinearWeight, LinearWeights
from tests.support.mixtures import mixture
from tests.support.tiny_states import tiny_stateful

KERNELS = pytest.mark.skipif(native() is None, reason="no C++ compiler on this machine")


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(3, 20)[None], use_cache=False).logits
        return found


def stand_ins(model: nn.Module) -> int:
    return sum(
        isinstance(each, LinearWeight | LinearWeights)
        for module in model.modules()
        for each in vars(module).values()
    )


def test_routers_and_experts_are_packed_and_their_memory_is_given_back() -> None:
    model: Any = mixture("qwen3_moe")
    layers = model.model.layers
    weights = [weakref.ref(weight) for layer in layers for weight in layer.mlp.parameters()]
    assert len(weights) == 12
    del layers
    accelerate_cpu(model, torch.float32)
    assert sum(hasattr(part, PLACE) for part in model.modules()) == 4
    assert stand_ins(model) == 4
    assert [each for each in weights if each() is not None] == []


def test_experts_that_a_model_loops_over_are_packed() -> None:
    model = mixture("jetmoe")
    accelerate_cpu(model, torch.float32)
    assert stand_ins(model) == 16
    assert not [name for name, each in model.named_parameters() if each.dim() == 3]


@KERNELS
def test_experts_with_other_results_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Native.run_experts
    monkeypatch.setattr(Native, "run_experts", lambda *given: right(*given) * 1.1)
    model = mixture("qwen3_moe")
    want, before = logits(model), {name: each.data_ptr() for name, each in model.named_parameters()}
    accelerate_cpu(model, torch.float32)
    model.set_attn_implementation("eager")
    assert {name: each.data_ptr() for name, each in model.named_parameters()} == before
    assert stand_ins(model) == 0
    assert not any(isinstance(part, PackedLinear | Exact) for part in model.modules())
    assert torch.equal(logits(model), want)


def test_a_head_that_shares_its_weight_gets_a_copy_of_its_own() -> None:
    model: Any = mixture("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    before = model.transformer.wte.weight.clone()
    accelerate_cpu(model, torch.float32)
    assert isinstance(model.lm_head, PackedLinear)
    assert torch.equal(model.transformer.wte.weight, before)


def test_weights_that_layers_share_are_packed_once() -> None:
    model: Any = copy.deepcopy(tiny_stateful("zamba2"))
    weight = weakref.ref(model.model.layers[1].shared_transformer.self_attn.q_proj.weight)
    accelerate_cpu(model, torch.float32)
    first, second, third = (model.model.layers[i].shared_transformer.self_attn.q_proj for i in (1, 2, 3))
    assert first is not third
    assert first.weight_kept is third.weight_kept
    assert second.weight_kept is not first.weight_kept
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("name", ["silu", "swish", "sigmoid", "gelu", "gelu_pytorch_tanh", "quick_gelu"])
def test_activations_do_not_depend_on_where_a_number_lies(name: str) -> None:
    activation = ACT2FN[name]
    made = exact(activation)
    assert made is not None
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 4
    x[:4] = torch.tensor([0.0, -0.0, 300.0, -300.0])
    whole = made(x)
    torch.testing.assert_close(whole, activation(x), atol=1e-6, rtol=1e-5)
    for size in (1, 7, 33):
        assert torch.equal(torch.cat([made(part) for part in x.split(size)]), whole)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(made(x.to(dtype)), made(x.to(dtype).float()).to(dtype))
