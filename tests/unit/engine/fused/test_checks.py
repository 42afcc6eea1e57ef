"""Layers whose updates are tiny beside their input are fused if their twin is right, and only then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from serve_app.engine.cpu.decoder import FusedLayer, FusedStack
from serve_app.engine.cpu.delta import DeltaLayer
from serve_app.engine.cpu.fused import NativeParts, accelerate_cpu
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.kernels import native

LAYERS = 2


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if native() is None:
        pytest.skip("no native kernels on this machine")


def build(dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    """With the random weights that transformers gives: a layer adds a tenth of what it gets, or less."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_model_of_small_weights_is_fused(dtype: torch.dtype, seed: int) -> None:
    model = accelerate_cpu(build(dtype, seed), dtype)
    (stack,) = model.get_decoder().layers
    assert isinstance(stack, FusedStack)
    assert len(stack.layers) == LAYERS
    assert isinstance(model.forward, FusedForward)


# Of some places, one weight of this size moves logits by less than the original rounds in bfloat16.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("self_attn.q_proj", torch.float32),
        ("self_attn.k_proj", torch.float32),
        ("self_attn.v_proj", torch.bfloat16),
        ("self_attn.o_proj", torch.bfloat16),
        ("mlp.gate_proj", torch.float32),
        ("mlp.up_proj", torch.float32),
        ("mlp.down_proj", torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("end", [0, LAYERS - 1])
def test_it_is_not_fused_if_one_weight_of_a_fused_layer_is_wrong(
    name: str, dtype: torch.dtype, end: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = NativeParts.make_layer

    def wrong(self: NativeParts, layer: Any, *arguments: Any) -> FusedLayer | DeltaLayer:
        if layer.self_attn.layer_idx == end:
            layer = copy.deepcopy(layer)
            layer.get_submodule(name).weight[3, 5] = 1.0
        return right(self, layer, *arguments)

    monkeypatch.setattr(NativeParts, "make_layer", wrong)
    model = accelerate_cpu(build(dtype), dtype)
    assert [type(layer) for layer in model.get_decoder().layers] == [LlamaDecoderLayer] * LAYERS
    assert not isinstance(model.forward, FusedForward)
    assert "LlamaForCausalLM is not fused: its logits are off by" in caplog.text
