"""Where the setting `engine.kv_cache_dtype` is refused, and what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.cuda import CudaAttention
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "cuda"), ("attention", "cuda"), ("attention", "triton"), ("task", "embed")],
)
def test_settings_that_contradict_it_are_named(field: str, value: str) -> None:
    engine = EngineConfig(kv_cache_dtype="int8")
    with pytest.raises(ValidationError, match=rf"engine\.kv_cache_dtype int8 .* {field}: {value}"):
        ModelConfig(name="m", engine=engine, **{field: value})  # type: ignore[arg-type]
    ModelConfig(name="m", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["int4", "fp8", "bfloat16", "", None, True])
def test_other_words_are_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="'auto' or 'int8'"):
        EngineConfig(kv_cache_dtype=other)  # type: ignore[arg-type]


def test_an_embedder_is_refused_however_it_was_recognised() -> None:
    config = ModelConfig(name="demo-embed", engine=EngineConfig(kv_cache_dtype="int8"))
    with pytest.raises(ModelLoadError, match=r"engine\.kv_cache_dtype int8 is not for models that embed"):
        load_embedder(config, lambda _: None)


def test_the_attention_of_a_gpu_refuses_it_by_name() -> None:
    with pytest.raises(ValueError, match=r"engine\.kv_cache_dtype int8 is for attention on a CPU"):
        CudaAttention().allocate((LayerSpec(2, 8, 8),), 4, 16, torch.float32, torch.device("cpu"), codes=True)
