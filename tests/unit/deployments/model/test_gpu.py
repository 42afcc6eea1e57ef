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


@pytest.mark.parametrize(
    ("ranks", "gpus", "said"),
    [
        (1, 2.0, r"2 GPUs for a replica: .*`num_gpus: 1`.*num_replicas.*`tensor_parallel: 2`"),
        (4, 2.0, r"2 GPUs for a replica: its model has 4 ranks.*`num_gpus: 4`"),
        (2, 0.5, r"0\.5 GPUs for a replica: its model has 2 ranks.*`num_gpus: 2`"),
    ],
)
def test_a_wrong_number_of_gpus_is_refused_with_what_to_write(ranks: int, gpus: float, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        with_gpu_share(ModelConfig(name="m", tensor_parallel=ranks), {"CPU": 1.0, "GPU": gpus})


def test_a_model_of_several_ranks_has_a_gpu_for_each() -> None:
    config = ModelConfig(name="m", device="cuda", tensor_parallel=4)
    assert with_gpu_share(config, {"CPU": 1.0, "GPU": 4.0}) is config
    staged = ModelConfig(name="m", device="cuda", tensor_parallel=2, pipeline_parallel=2)
    assert with_gpu_share(staged, {"CPU": 1.0, "GPU": 4.0}) is staged
    on_cpus = ModelConfig(name="m", device="cpu", tensor_parallel=2)
    assert with_gpu_share(on_cpus, {"CPU": 2.0}) is on_cpus
