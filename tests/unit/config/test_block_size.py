"""Only blocks with which answers are exact can be configured."""

import pytest
from pydantic import ValidationError

from serve_app.config import EngineConfig, ModelConfig


@pytest.mark.parametrize("size", [16, 32, 64])
def test_exact_blocks(size: int) -> None:
    assert ModelConfig(name="m", engine=EngineConfig(block_size=size)).engine.block_size == size


@pytest.mark.parametrize("size", [1, 8, 15, 17, 24, 48, 96, 128, 256, 1024])
def test_others_are_refused(size: int) -> None:
    with pytest.raises(ValidationError, match=rf"engine.block_size must be 16, 32 or 64, not {size}"):
        ModelConfig(name="m", engine=EngineConfig(block_size=size))
