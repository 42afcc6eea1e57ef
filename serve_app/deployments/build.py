"""Typed application builders: what `import_path` and `args` of a deploy file name.

    applications:
    - name: system
      route_prefix: /
      import_path: serve_app.deployments.build:build_system_app
      args: {}                                # GatewayConfig
      deployments:
      - name: Gateway
        user_config: {endpoints: [{name: demo-chat}]}   # Catalogue
    - name: model-demo-chat                   # app_name("demo-chat")
      route_prefix: null
      import_path: serve_app.deployments.build:build_model_app
      args: {name: demo-chat}                 # ModelConfig

The numbers here are defaults; `deployments:` in the file overrides each of them. From
Python, `serve.run` takes what these functions return:

    serve.run(model_app(ModelConfig(name="demo-chat")), name=app_name("demo-chat"), route_prefix=None)
    serve.run(system_app([Endpoint(name="demo-chat")]), name="system")
"""

# No `from __future__ import annotations`: Serve reads the type of `config` from the builder itself.
from collections.abc import Sequence
from typing import Any, Final

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.deployments.defaults import HEALTH_PERIOD_S, HEALTH_TIMEOUT_S, SURGE_PERCENT
from serve_app.deployments.limiter import limiter_deployment
from serve_app.deployments.model.replica import ModelReplica
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint

DRAIN_S: Final = 600.0  # Serve's default would kill long answers on shutdown
BY_LOAD: Final = "serve_app.deployments.model.scaling:ByLoad"
UPSCALE_DELAY_S: Final = 10.0
DOWNSCALE_DELAY_S: Final = 300.0
# Serve measures every 10 s and averages 30 s. A mean over no more than the delay of a decision
# forgets a burst in time; the field that Serve calls deprecated has no working successor in 2.60.
METRICS_INTERVAL_S: Final = 1.0
LOOK_BACK_S: Final = 5.0
OPEN_BESIDES: Final = 64  # calls that are no generation: health, model lists


def build_system_app(config: GatewayConfig) -> Application:
    """The one routed application: the gateway, its endpoints from the file's `user_config`."""
    return gateway_deployment(config).bind(config, limiter_deployment().bind())


def build_model_app(config: ModelConfig) -> Application:
    """One model, without a route: gateways and `Client` reach it by its application's name."""
    return model_deployment(config).bind(config)


def system_app(endpoints: Sequence[Endpoint], config: GatewayConfig | None = None) -> Application:
    """As `build_system_app`, with the endpoints given here."""
    config = config or GatewayConfig()
    catalogue = Catalogue(endpoints=tuple(endpoints))
    gateway = gateway_deployment(config).options(user_config=catalogue.dump())
    return gateway.bind(config, limiter_deployment().bind())


model_app = build_model_app


def gateway_deployment(config: GatewayConfig) -> Deployment:
    """The deployment of the gateway, for `.options(...)` from Python."""
    from serve_app.deployments.gateway.replica import GatewayReplica  # the HTTP stack; models do without

    return serve.deployment(serve.ingress()(GatewayReplica)).options(
        name="Gateway",
        # The gateway refuses on its own, in the words of each protocol; this is the fence behind it.
        max_ongoing_requests=2 * config.max_in_flight + OPEN_BESIDES,
        max_queued_requests=config.max_in_flight,
        graceful_shutdown_timeout_s=DRAIN_S,
        max_surge_percent=SURGE_PERCENT,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        ray_actor_options={"num_cpus": 0.1},
    )


def model_deployment(config: ModelConfig) -> Deployment:
    """The deployment of a model, for `.options(...)` from Python; bind it to the same `config`."""
    engine = config.engine
    return serve.deployment(ModelReplica).options(
        name="Model",
        **_replicas(config),
        # A replica takes what its engine can batch and queue. A gateway holds as much back, so
        # that what waits for a replica to start, all at once, is what the replica can take.
        max_ongoing_requests=engine.max_sequences + engine.max_waiting + OPEN_BESIDES,
        max_queued_requests=engine.max_sequences + engine.max_waiting,
        graceful_shutdown_timeout_s=DRAIN_S,
        max_surge_percent=SURGE_PERCENT,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        ray_actor_options={"num_cpus": 0.5},
    )


def _replicas(config: ModelConfig) -> dict[str, Any]:
    """Bought throughput as replicas: as many as the least needs, up to as many as the most needs."""
    bought = config.provisioned
    if bought is None:
        return {}
    if bought.min_replicas == bought.max_replicas:
        return {"num_replicas": bought.max_replicas}
    scaling = AutoscalingConfig(
        min_replicas=bought.min_replicas,
        initial_replicas=bought.min_replicas,
        max_replicas=bought.max_replicas,
        upscale_delay_s=UPSCALE_DELAY_S,
        downscale_delay_s=DOWNSCALE_DELAY_S,
        metrics_interval_s=METRICS_INTERVAL_S,
        look_back_period_s=LOOK_BACK_S,
        policy=AutoscalingPolicy(policy_function=BY_LOAD),
    )
    return {"autoscaling_config": scaling}
