"""Typed application builders, which the `import_path` of a deploy file names and which read its `args`.

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

The numbers here are defaults; `deployments:` in the file overrides each of them. From Python, pass the
results of these functions to `serve.run`:

    serve.run(model_app(ModelConfig(name="demo-chat")), name=app_name("demo-chat"), route_prefix=None)
    serve.run(system_app([Endpoint(name="demo-chat")]), name="system")
"""

# No `from __future__ import annotations`: Serve reads the type of `config` from the builder itself.
from collections.abc import Sequence
from typing import Final

from ray import serve
from ray.serve import Application, Deployment

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.deployments.defaults import DRAIN_S, HEALTH, OPEN_BESIDES, SURGE_PERCENT
from serve_app.deployments.limiter import limiter_deployment
from serve_app.deployments.model.deployment import model_deployment
from serve_app.endpoints.catalogue import Catalogue, check_judges
from serve_app.endpoints.endpoint import Endpoint

MAX_COMMANDS: Final = 10_000  # at once; each gateway has one open poll for the next snapshot
CONTROL_STOP_S: Final = 5.0


def build_system_app(config: GatewayConfig) -> Application:
    """The one routed application: the gateway, with its endpoints from the file's `user_config`."""
    return _bound(gateway_deployment(config), config)


def build_model_app(config: ModelConfig) -> Application:
    """One model, without a route: gateways and `Client` reach it by its application's name."""
    return model_deployment(config).bind(config)


def system_app(endpoints: Sequence[Endpoint], config: GatewayConfig | None = None) -> Application:
    """Like `build_system_app`, but the endpoints are passed. Raises CatalogueError, a ValueError."""
    config = config or GatewayConfig()
    catalogue = Catalogue(endpoints=tuple(endpoints))
    check_judges(catalogue, config.guardrails_model)
    gateway = gateway_deployment(config).options(user_config=catalogue.dump())
    return _bound(gateway, config)


model_app = build_model_app


def _bound(gateway: Deployment, config: GatewayConfig) -> Application:
    """The gateway, bound to the limiter and, unless the control plane is off, to the control plane."""
    limiter = limiter_deployment().bind()
    if not config.control.enabled:
        return gateway.bind(config, limiter)
    return gateway.bind(config, limiter, control_deployment().bind(config))


def control_deployment() -> Deployment:
    """The control plane, to be bound to the gateway of the `system` application."""
    from serve_app.deployments.control.replica import ControlReplica  # the database; models do without

    return serve.deployment(ControlReplica).options(
        name="ControlPlane",
        num_replicas=1,
        max_ongoing_requests=MAX_COMMANDS,
        graceful_shutdown_timeout_s=CONTROL_STOP_S,
        max_surge_percent=0,  # one at a time opens the database
        **HEALTH,
        ray_actor_options={"num_cpus": 0.05},
    )


def gateway_deployment(config: GatewayConfig) -> Deployment:
    """The gateway as a deployment, for `.options(...)` from Python."""
    from serve_app.deployments.gateway.replica import GatewayReplica  # the HTTP stack; models do without

    return serve.deployment(serve.ingress()(GatewayReplica)).options(
        name="Gateway",
        # The gateway refuses by itself, in the words of each protocol; this limit is only a safeguard.
        max_ongoing_requests=2 * config.max_in_flight + OPEN_BESIDES,
        max_queued_requests=config.max_in_flight,
        graceful_shutdown_timeout_s=DRAIN_S,
        max_surge_percent=SURGE_PERCENT,
        **HEALTH,
        ray_actor_options={"num_cpus": 0.1},
    )
