"""Where the setting `quantization` is refused, and what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from serve_app.config import ModelConfig
from serve_app.engine.cpu.fused import check_quantizable
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.models import loader
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "cuda"), ("attention", "reference"), ("attention", "cuda"), ("task", "embed")],
)
def test_settings_that_contradict_it_are_named(field: str, value: str) -> None:
    for kind in Quantization:
        with pytest.raises(ValidationError, match=f"quantization {kind} .* {field}: {value}"):
            ModelConfig(name="m", quantization=kind.value, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["int2", "fp8", "", None, True])
def test_other_words_are_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="'none', 'int8' or 'int4'"):
        ModelConfig(name="m", quantization=other)  # type: ignore[arg-type]


def test_a_gpu_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "choose_device", lambda _: torch.device("cuda"))
    config = ModelConfig(name="demo-chat", quantization="int8")
    with pytest.raises(ModelLoadError, match="quantization int8 is for a CPU"):
        loader.load_model(config, lambda _: None)


def test_an_embedder_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="not for models that embed"):
        load_embedder(ModelConfig(name="demo-embed", quantization="int8"), lambda _: None)


def test_experts_are_refused_by_name() -> None:
    module = torch.nn.Module()
    module.experts = torch.nn.Parameter(torch.zeros(4, 8, 8))
    with pytest.raises(UnsupportedModel, match=r"experts is a tensor of shape \(4, 8, 8\)"):
        check_quantizable(module, INT8)  # type: ignore[arg-type]


def test_a_layer_of_another_kind_is_refused_by_name() -> None:
    """Its head alone would be quantised."""
    module = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16))
    with pytest.raises(UnsupportedModel, match=r"c_attn.weight is the weight of a Conv1D"):
        check_quantizable(module, INT8)
    linear = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2, vocab_size=32
        )
    )
    check_quantizable(linear, INT8)
