"""The demo model on the shared cluster, behind HAProxy and a gateway, for every file that needs real answers.

Both stay deployed from file to file. The gateway has the only route: where a file put another in its place,
it is deployed again.
"""

from __future__ import annotations

import time
from typing import Final

import httpx
import pytest

from serve_app.config import ControlConfig, EngineConfig, GatewayConfig, ModelConfig
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.rules import app_name
from tests.support.ray_cluster import Cluster, free_port

MODEL: Final = "demo-chat"
BLOCKS: Final = 40  # of 16 tokens: a few long requests do not fit together
WAIT_S: Final = 60.0
GRPC_PORT: Final = free_port()

_gateway: dict[str, float] = {}  # when it was `deployed`


@pytest.fixture(scope="module")
def demo_chat(ray_cluster: Cluster) -> Cluster:
    """A ready server that fronts MODEL, with gRPC at GRPC_PORT."""
    _deploy_model()
    _deploy_gateway()
    deadline = time.monotonic() + WAIT_S
    while not _is_ready(ray_cluster.url):
        if time.monotonic() > deadline:
            raise TimeoutError("the gateway did not become ready")
        time.sleep(0.1)
    return ray_cluster


def _deploy_gateway() -> None:
    """Unless ours runs since an earlier file."""
    from ray import serve  # not on import: unit tests do without Ray

    from serve_app.deployments.build import system_app

    known = serve.status().applications.get("system")
    if known is not None and (known.status, known.last_deployed_time_s) == (
        "RUNNING",
        _gateway.get("deployed"),
    ):
        return
    config = GatewayConfig(grpc_port=GRPC_PORT, control=ControlConfig(enabled=False))
    app = system_app([Endpoint(name=MODEL)], config)
    serve.run(app, name="system", route_prefix="/")
    _gateway["deployed"] = serve.status().applications["system"].last_deployed_time_s


def _deploy_model() -> None:
    """Unless it runs since an earlier file."""
    from ray import serve

    from serve_app.deployments.model.deployment import model_deployment

    name = app_name(MODEL)
    known = serve.status().applications.get(name)
    if known is not None and known.status == "RUNNING":
        return
    config = ModelConfig(
        name=MODEL,
        dtype="float32",
        threads=1,
        engine=EngineConfig(
            max_sequences=16, max_waiting=128, block_size=16, num_blocks=BLOCKS, max_model_len=512
        ),
    )
    model = model_deployment(config).options(health_check_period_s=1, graceful_shutdown_timeout_s=60)
    serve.run(model.bind(config), name=name, route_prefix=None)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
