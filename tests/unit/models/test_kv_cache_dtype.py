"""Where the setting `engine.kv_cache_dtype` is refused, and what it says."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.embedder import load_embedder
from serve_app.models.errors import ModelLoadError


def test_a_task_without_a_cache_is_named() -> None:
    engine = EngineConfig(kv_cache_dtype="int8")
    with pytest.raises(ValidationError, match=r"engine\.kv_cache_dtype int8 .* task: embed"):
        ModelConfig(name="m", engine=engine, task="embed")
    ModelConfig(name="m", task="embed")


@pytest.mark.parametrize("other", ["int4", "fp8", "bfloat16", "", None, True])
def test_other_words_are_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="'auto' or 'int8'"):
        EngineConfig(kv_cache_dtype=other)  # type: ignore[arg-type]


def test_an_embedder_is_refused_however_it_was_recognised() -> None:
    config = ModelConfig(name="demo-embed", engine=EngineConfig(kv_cache_dtype="int8"))
    with pytest.raises(ModelLoadError, match=r"engine\.kv_cache_dtype int8 is not for models that embed"):
        load_embedder(config, lambda _: None)
