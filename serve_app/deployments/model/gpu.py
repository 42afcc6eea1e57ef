"""Decides from Ray's resources which part of a GPU a replica may use.

A replica is one process that runs its model on one GPU, or on a part of one that it shares with
other replicas. Ray only counts GPUs: a replica has to stay within its part by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError

ONE_GPU: Final = (
    "a replica runs its model on one GPU; write `num_gpus: 1`, or less to share one, and num_replicas for "
    "more GPUs"
)


def with_gpu_share(config: ModelConfig, assigned: Mapping[str, float]) -> ModelConfig:
    """`config` with the part of a GPU that Ray assigned to this actor (`assigned`: the actor's resources).

    A `gpu_share` in the settings takes precedence. Raises ModelLoadError for more than one GPU.
    """
    gpus = assigned.get("GPU", 0.0)
    if gpus > 1:
        raise ModelLoadError(f"{config.name}: ray_actor_options has num_gpus {gpus:g}; {ONE_GPU}")
    if not 0 < gpus < 1 or config.engine.gpu_share is not None:
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"gpu_share": gpus})})
