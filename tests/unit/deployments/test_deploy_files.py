"""Every deploy file says what Serve and our builders understand, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.endpoints.names import app_name

FILES = sorted((Path(__file__).parents[3] / "deploy").glob("*.yaml"))
BUILDERS: dict[str, type[BaseModel]] = {
    "serve_app.deployments.build:build_system_app": GatewayConfig,
    "serve_app.deployments.build:build_model_app": ModelConfig,
}


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def deploy(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return loaded


def test_serve_knows_every_key(deploy: dict[str, Any]) -> None:
    ServeDeploySchema.model_validate(deploy)
    # Serve drops keys that it does not know without a word.
    assert set(deploy) <= set(ServeDeploySchema.model_fields)
    for app in deploy["applications"]:
        assert set(app) <= set(ServeApplicationSchema.model_fields)


def test_the_arguments_are_those_of_the_builder(deploy: dict[str, Any]) -> None:
    for app in deploy["applications"]:
        BUILDERS[app["import_path"]].model_validate(app["args"])


def test_the_http_host_is_set(deploy: dict[str, Any]) -> None:
    assert deploy["http_options"]["host"] == "127.0.0.1"


def test_only_the_gateway_has_a_route_and_it_finds_every_model(deploy: dict[str, Any]) -> None:
    system, *models = deploy["applications"]
    assert (system["name"], system["route_prefix"]) == ("system", "/")
    assert [app["route_prefix"] for app in models] == [None] * len(models)
    assert [app["name"] for app in models] == [app_name(name) for name in system["args"]["models"]]
    assert [app["args"]["name"] for app in models] == system["args"]["models"]
