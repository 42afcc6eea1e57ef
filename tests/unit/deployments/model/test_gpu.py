"""The part of a GPU that Ray gave a replica becomes the part of its memory that the replica takes."""

from __future__ import annotations

import pytest

from serve_app.config import EngineConfig, ModelConfig
from serve_app.deployments.model.gpu import with_gpu_share
from serve_app.models.errors import ModelLoadError


@pytest.mark.parametrize(
    ("assigned", "share"),
    [
        ({}, None),
        ({"CPU": 2.0}, None),
        ({"CPU": 2.0, "GPU": 1.0}, None),
        ({"GPU": 0.5}, 0.5),
    ],
)
def test_a_part_of_a_gpu_is_a_part_of_its_memory(assigned: dict[str, float], share: float | None) -> None:
    config = ModelConfig(name="m", device="cuda")
    assert with_gpu_share(config, assigned).engine.gpu_share == share
    said = ModelConfig(name="m", engine=EngineConfig(gpu_share=0.4))
    assert with_gpu_share(said, assigned) is said


def test_more_than_one_gpu_is_refused_with_what_to_write() -> None:
    with pytest.raises(ModelLoadError, match=r"num_gpus 2; a replica runs .*`num_gpus: 1`.*num_replicas"):
        with_gpu_share(ModelConfig(name="m"), {"CPU": 1.0, "GPU": 2.0})
