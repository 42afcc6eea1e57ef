"""Where the setting `quantization` is refused, and what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from serve_app.config import ModelConfig
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.models import loader
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError
from tests.support.mixtures import mixture


@pytest.mark.parametrize(
    ("field", "value"), [("attention", "reference"), ("attention", "cuda"), ("task", "embed")]
)
def test_settings_that_contradict_it_are_named(field: str, value: str) -> None:
    for kind in ("int8", "int4", "fp8"):
        with pytest.raises(ValidationError, match=f"quantization {kind} .* {field}: {value}"):
            ModelConfig(name="m", quantization=kind, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("device", "cpu"), ("attention", "cpu")])
def test_fp8_is_for_a_gpu(field: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"quantization fp8 .* a GPU, not with {field}: {value}"):
        ModelConfig(name="m", quantization="fp8", **{field: value})  # type: ignore[arg-type]
    ModelConfig(name="m", quantization="fp8", device="cuda")


@pytest.mark.parametrize("other", ["int2", "fp4", "", None, True])
def test_other_words_are_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="'none', 'int8', 'int4' or 'fp8'"):
        ModelConfig(name="m", quantization=other)  # type: ignore[arg-type]


def test_a_format_that_the_device_does_not_have_is_refused_before_weights_are_read() -> None:
    if torch.cuda.is_available():
        pytest.skip("the model would run on a GPU")
    config = ModelConfig(name="demo-chat", quantization="fp8")
    with pytest.raises(
        ModelLoadError, match="quantization fp8 is for models on a GPU; this one would run on cpu"
    ):
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
