"""Decides from Ray's resources which GPUs, or which part of one, a replica may use.

A replica runs its model on one GPU, on a part of one that it shares with other replicas, or on as many GPUs
of one machine as its model has ranks. Ray only counts GPUs: a replica has to stay within its part by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError


def wrong_gpus(config: ModelConfig, gpus: float) -> str | None:
    """Why a replica of `config` cannot have this number of GPUs, and what to write; None if it can."""
    ranks = config.tensor_parallel
    if ranks > 1 and gpus not in (0, ranks):
        return (
            f"{gpus:g} GPUs for a replica: its model has {ranks} ranks, one on each GPU; write "
            f"`num_gpus: {ranks}`, or change `tensor_parallel`"
        )
    if ranks == 1 and gpus > 1:
        return (
            f"{gpus:g} GPUs for a replica: its model runs on one; write `num_gpus: 1`, or less to share one, "
            f"and num_replicas for more GPUs, or divide the model among them by `tensor_parallel: {gpus:g}`"
        )
    return None


def with_gpu_share(config: ModelConfig, assigned: Mapping[str, float]) -> ModelConfig:
    """`config` with the part of a GPU that Ray assigned to this actor (`assigned`: the actor's resources).

    A `gpu_share` in the settings takes precedence. Raises ModelLoadError for a number of GPUs that the model
    cannot use.
    """
    gpus = assigned.get("GPU", 0.0)
    if wrong := wrong_gpus(config, gpus):
        raise ModelLoadError(f"{config.name}: ray_actor_options has {wrong}")
    if not 0 < gpus < 1 or config.engine.gpu_share is not None:
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"gpu_share": gpus})})
