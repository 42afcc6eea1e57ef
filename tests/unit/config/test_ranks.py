"""Settings that divide a model among ranks: their numbers, and what does not go with them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.config import ModelConfig


def test_every_stage_has_as_many_ranks_and_the_last_one_has_the_first() -> None:
    config = ModelConfig(name="m", tensor_parallel=2, pipeline_parallel=3)
    assert config.ranks == 6
    assert [config.stage_of(rank) for rank in range(6)] == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pipeline_parallel": 2, "task": "embed"}, "pipeline_parallel is for models that generate"),
        ({"pipeline_parallel": 2, "engine": {"gpu_share": 0.5}}, "pipeline_parallel takes whole GPUs"),
        ({"pipeline_parallel": 2, "engine": {"overlap": True}}, r"engine\.overlap prepares .* take one of"),
        ({"pipeline_parallel": 2, "expert_parallel": True}, "is for models with tensor_parallel"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "task": "embed"}, "tensor_parallel is for models"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ModelConfig(name="m", **settings)
