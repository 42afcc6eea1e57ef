"""A model as a Serve deployment: its limits, and how many replicas it has."""

from __future__ import annotations

from typing import Any, Final

from ray import serve
from ray.serve import Deployment
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from serve_app.config import ModelConfig
from serve_app.deployments.defaults import DRAIN_S, HEALTH, OPEN_BESIDES, SURGE_PERCENT
from serve_app.deployments.model.replica import ModelReplica

MODEL_CPUS: Final = 0.5  # of a replica, unless the deploy file names a number
BY_LOAD: Final = "serve_app.deployments.model.scaling:ByLoad"
UPSCALE_DELAY_S: Final = 10.0
DOWNSCALE_DELAY_S: Final = 300.0
# Serve measures every 10 s and averages 30 s. A mean over at most the delay of a decision forgets a burst in
# time; the field that Serve calls deprecated has no working successor in 2.60.
METRICS_INTERVAL_S: Final = 1.0
LOOK_BACK_S: Final = 5.0


def model_deployment(config: ModelConfig) -> Deployment:
    """The deployment of a model, for `.options(...)` from Python; bind it to the same `config`."""
    engine = config.engine
    return serve.deployment(ModelReplica).options(
        name="Model",
        **_bought(config),
        # A replica takes as many requests as its engine can batch and queue. A gateway holds back the same
        # number, so all requests that wait for a replica to start fit into it when they arrive at once.
        max_ongoing_requests=engine.max_sequences + engine.max_waiting + OPEN_BESIDES,
        max_queued_requests=engine.max_sequences + engine.max_waiting,
        graceful_shutdown_timeout_s=DRAIN_S,
        max_surge_percent=SURGE_PERCENT,
        **HEALTH,
        ray_actor_options={"num_cpus": MODEL_CPUS},
    )


def _bought(config: ModelConfig) -> dict[str, Any]:
    """The numbers of replicas that the minimum and the maximum of purchased throughput need."""
    bought = config.provisioned
    return {} if bought is None else replicas(bought.min_replicas, bought.max_replicas)


def replicas(least: int, most: int) -> dict[str, Any]:
    """The settings of a model's deployment for a number of replicas, or for a range that follows the load."""
    if least == most:
        return {"num_replicas": most}
    scaling = AutoscalingConfig(
        min_replicas=least,
        initial_replicas=least,
        max_replicas=most,
        upscale_delay_s=UPSCALE_DELAY_S,
        downscale_delay_s=DOWNSCALE_DELAY_S,
        metrics_interval_s=METRICS_INTERVAL_S,
        look_back_period_s=LOOK_BACK_S,
        policy=AutoscalingPolicy(policy_function=BY_LOAD),
    )
    return {"autoscaling_config": scaling}
