"""Turns the part of a GPU that Ray assigned to a replica into the part of its memory that the model may take.

Ray only counts GPUs: a replica has to stay within its part by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.config import ModelConfig
from serve_app.deployments.model.placement import GPU, Bundles, wrong_gpus
from serve_app.models.errors import ModelLoadError


def with_gpu_share(config: ModelConfig, assigned: Mapping[str, float], bundles: Bundles = ()) -> ModelConfig:
    """`config` with the part of a GPU that Ray assigned to this actor (`assigned`: the actor's resources).

    `bundles`: of the actor's placement group.
    A `gpu_share` in the settings takes precedence. Raises ModelLoadError for a number of GPUs that the model
    cannot use.
    """
    gpus = assigned.get(GPU, 0.0)
    if wrong := wrong_gpus(config, gpus, bundles):
        raise ModelLoadError(f"{config.name}: ray_actor_options has {wrong}")
    if not 0 < gpus < 1 or config.engine.gpu_share is not None:
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"gpu_share": gpus})})
