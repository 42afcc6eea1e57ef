"""Typed application builders: what `import_path` and `args` of a deploy file name.

    applications:
    - name: system
      route_prefix: /
      import_path: serve_app.deployments.build:build_system_app
      args: {models: [demo-chat]}             # GatewayConfig
    - name: model-demo-chat                   # app_name("demo-chat")
      route_prefix: null
      import_path: serve_app.deployments.build:build_model_app
      args: {name: demo-chat}                 # ModelConfig

The numbers here are defaults; `deployments:` in the file overrides each of them.
"""

# No `from __future__ import annotations`: Serve reads the type of `config` from the builder itself.
from typing import Final

from ray import serve
from ray.serve import Application, Deployment

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.deployments.model import ModelReplica

# Serve's defaults would kill long answers on shutdown and notice a dead engine late.
DRAIN_S: Final = 600.0
HEALTH_PERIOD_S: Final = 5.0
HEALTH_TIMEOUT_S: Final = 15.0
OPEN_BESIDES: Final = 64  # calls that are no generation: health, model lists


def build_system_app(config: GatewayConfig) -> Application:
    """The one routed application: the gateway."""
    from serve_app.deployments.gateway import GatewayReplica  # the HTTP stack; models do without

    deployment = serve.deployment(serve.ingress()(GatewayReplica)).options(
        name="Gateway",
        # The gateway refuses on its own, in the words of each protocol; this is the fence behind it.
        max_ongoing_requests=2 * config.max_in_flight + OPEN_BESIDES,
        max_queued_requests=config.max_in_flight,
        graceful_shutdown_timeout_s=DRAIN_S,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        ray_actor_options={"num_cpus": 0.1},
    )
    return deployment.bind(config)


def build_model_app(config: ModelConfig) -> Application:
    """One model, without a route: gateways and `Client` reach it by its application's name."""
    return model_deployment(config).bind(config)


def model_deployment(config: ModelConfig) -> Deployment:
    """The deployment of a model, for `.options(...)` from Python; bind it to the same `config`."""
    engine = config.engine
    return serve.deployment(ModelReplica).options(
        name="Model",
        # A replica takes what its engine can batch and queue; the rest waits at the
        # gateways, which may give it to another replica, and is refused beyond that.
        max_ongoing_requests=engine.max_sequences + engine.max_waiting + OPEN_BESIDES,
        max_queued_requests=max(1, engine.max_waiting),
        graceful_shutdown_timeout_s=DRAIN_S,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        ray_actor_options={"num_cpus": 0.5},
    )
