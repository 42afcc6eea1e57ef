"""Where the setting `quantization` is refused, and what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from serve_app.config import ModelConfig
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.models import loader
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError
from tests.support.mixtures import mixture


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


def test_weights_that_a_model_uses_in_a_way_of_its_own_are_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"ffn\.experts\.mlp\.w1 is a tensor of shape .* uses otherwise"
    ):
        accelerate_cpu(mixture("dbrx"), torch.float32, weights=INT8)


def test_experts_and_layers_like_gpt2s_are_quantised() -> None:
    for family, name in (("qwen3_moe", "experts.down_proj"), ("gpt2", "c_attn.weight")):
        model = mixture(family)
        assert any(each.endswith(name) for each, _ in model.named_parameters())
        accelerate_cpu(model, torch.float32, weights=INT8)
        left = [each for each, parameter in model.named_parameters() if parameter.dim() > 1]
        assert left
        assert all("embed" in each or "wte" in each or "wpe" in each for each in left)
