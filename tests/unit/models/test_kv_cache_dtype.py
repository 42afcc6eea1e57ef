"""Where the setting `engine.kv_cache_dtype` is refused, and what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import load_model


def test_a_task_without_a_cache_is_named() -> None:
    engine = EngineConfig(kv_cache_dtype="int8")
    with pytest.raises(ValidationError, match=r"engine\.kv_cache_dtype int8 .* task: embed"):
        ModelConfig(name="m", engine=engine, task="embed")
    ModelConfig(name="m", task="embed")


@pytest.mark.parametrize("other", ["int4", "fp16", "bfloat16", "", None, True])
def test_other_words_are_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="'auto', 'int8' or 'fp8'"):
        EngineConfig(kv_cache_dtype=other)  # type: ignore[arg-type]


def test_an_embedder_is_refused_however_it_was_recognised() -> None:
    config = ModelConfig(name="demo-embed", engine=EngineConfig(kv_cache_dtype="int8"))
    with pytest.raises(ModelLoadError, match=r"engine\.kv_cache_dtype int8 is not for models that embed"):
        load_embedder(config, lambda _: None)


@pytest.mark.parametrize("field", ["device", "attention"])
def test_fp8_is_for_a_gpu(field: str) -> None:
    engine = EngineConfig(kv_cache_dtype="fp8")
    with pytest.raises(
        ValidationError, match=rf"engine\.kv_cache_dtype fp8 is for a GPU, not with {field}: cpu"
    ):
        ModelConfig(name="m", engine=engine, **{field: "cpu"})  # type: ignore[arg-type]
    if torch.cuda.is_available():
        return
    config = ModelConfig(name="demo-chat", engine=engine)
    with pytest.raises(ModelLoadError, match=r"engine\.kv_cache_dtype fp8 is for models on a GPU"):
        load_model(config, lambda _: None)
