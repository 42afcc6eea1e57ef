"""What the builders ask of Serve: numbers of replicas, queues and delays, read from the built deployments."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ray.serve import Deployment
from ray.serve._private.application_state import override_deployment_info
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeApplicationSchema

from serve_app.config import EngineConfig, GatewayConfig, ModelConfig, ProvisionedConfig
from serve_app.deployments.build import system_app
from serve_app.deployments.model.deployment import BY_LOAD, model_deployment
from serve_app.deployments.model.scaling import ByLoad
from serve_app.endpoints.ai_gateway import AiGateway, GuardrailRules, Guardrails
from serve_app.endpoints.endpoint import Endpoint


def deployment(**provisioned: float) -> Deployment:
    """A model's deployment; without arguments nothing is bought."""
    bought = ProvisionedConfig.model_validate(provisioned) if provisioned else None
    return model_deployment(ModelConfig(name="demo-chat", provisioned=bought))


def scaling(made: Deployment) -> AutoscalingConfig:
    found = made._deployment_config.autoscaling_config
    assert isinstance(found, AutoscalingConfig)
    return found


def test_an_endpoint_that_nobody_judges_is_refused_before_it_is_built() -> None:
    rules = Guardrails(input=GuardrailRules(safety=True))
    endpoint = Endpoint(name="talk", ai_gateway=AiGateway(guardrails=rules))
    with pytest.raises(ValueError, match=r"\(endpoint 'talk'\): must name an endpoint that chats"):
        system_app([endpoint])
    assert system_app([endpoint], GatewayConfig(guardrails_model="talk"))


def test_without_bought_throughput_there_is_one_replica() -> None:
    made = deployment()
    assert made.num_replicas == 1
    assert made._deployment_config.autoscaling_config is None


@pytest.mark.parametrize(
    ("least", "most", "each", "replicas"),
    [
        (1000, 1000, 1000, 1),
        (900, 1000, 1000, 1),
        (1001, 2000, 1000, 2),
        (1, 1, 1e9, 1),
        (2500, 2600, 900, 3),
    ],
)
def test_the_same_number_for_least_and_most_is_fixed(
    least: float, most: float, each: float, replicas: int
) -> None:
    made = deployment(min_throughput=least, max_throughput=most, replica_throughput=each)
    assert made.num_replicas == replicas
    assert made._deployment_config.autoscaling_config is None
    assert made._deployment_config.max_surge_percent == 100


@pytest.mark.parametrize(
    ("least", "most", "each", "replicas"),
    [
        (1000, 2000, 1000, (1, 2)),
        (0, 500, 1000, (0, 1)),
        (0, 5000, 1000, (0, 5)),
        (1, 1001, 1000, (1, 2)),
        (999.5, 3000.5, 1000, (1, 4)),
    ],
)
def test_bought_throughput_bounds_the_replicas_that_scale_by_load(
    least: float, most: float, each: float, replicas: tuple[int, int]
) -> None:
    made = deployment(min_throughput=least, max_throughput=most, replica_throughput=each)
    config = scaling(made)
    assert (config.min_replicas, config.max_replicas) == replicas
    assert config.initial_replicas == replicas[0]  # bought capacity does not grow into its minimum
    assert made._deployment_config.max_surge_percent == 100
    policy = config.policy.get_policy()(**config.policy.policy_kwargs)
    assert type(policy).__name__ == ByLoad.__name__


@settings(deadline=None)
@given(st.floats(0, 1e6, allow_subnormal=False), st.floats(1e-3, 1e6), st.floats(1e-2, 1e6))
def test_replicas_make_what_was_bought_and_one_fewer_would_not(
    least: float, more: float, each: float
) -> None:
    bought = ProvisionedConfig(min_throughput=least, max_throughput=least + more, replica_throughput=each)
    for replicas, throughput in ((bought.min_replicas, least), (bought.max_replicas, least + more)):
        assert replicas * each >= throughput or math.isclose(replicas * each, throughput)
        assert (replicas - 1) * each < throughput or replicas == 0
    assert bought.max_replicas >= 1


def test_fifteen_times_a_throughput_are_fifteen_replicas_though_not_in_floats() -> None:
    bought = ProvisionedConfig(min_throughput=153, max_throughput=153, replica_throughput=10.2)
    assert (bought.min_replicas, bought.max_replicas) == (15, 15)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_throughput": 0, "replica_throughput": 1},
        {"max_throughput": 1, "replica_throughput": 0},
        {"max_throughput": 1, "replica_throughput": -1},
        {"max_throughput": 1, "min_throughput": 2, "replica_throughput": 1},
        {"max_throughput": math.inf, "replica_throughput": 1},
        {"max_throughput": math.nan, "replica_throughput": 1},
        {"max_throughput": 1},
    ],
)
def test_throughput_that_cannot_be_bought_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="throughput"):
        ProvisionedConfig.model_validate(wrong)


def test_the_mean_of_a_load_is_no_longer_than_the_delay_of_a_decision() -> None:
    config = scaling(deployment(min_throughput=0, max_throughput=2, replica_throughput=1))
    assert config.metrics_interval_s < config.look_back_period_s <= config.upscale_delay_s
    assert config.upscale_delay_s < config.downscale_delay_s


@pytest.mark.parametrize(("sequences", "waiting"), [(64, 256), (32, 32), (1, 0), (8, 0)])
def test_a_gateway_holds_back_all_that_a_starting_replica_can_take(sequences: int, waiting: int) -> None:
    engine = EngineConfig(max_sequences=sequences, max_waiting=waiting)
    made = model_deployment(ModelConfig(name="demo-chat", engine=engine))
    assert made.max_queued_requests == sequences + waiting
    assert made.max_ongoing_requests > sequences + waiting  # the engine refuses, in our words, before Serve


def overridden(config: ModelConfig, **options: Any) -> DeploymentConfig:
    """What Serve makes of the builder's deployment and the options under `deployments:` in a deploy file."""
    made = model_deployment(config)
    info = DeploymentInfo(
        deployment_config=made._deployment_config,
        replica_config=made._replica_config,
        start_time_ms=0,
        deployer_job_id="",
    )
    schema = ServeApplicationSchema.model_validate(
        {
            "name": "x",
            "import_path": "x:y",
            "route_prefix": None,
            "deployments": [{"name": "Model", **options}],
        }
    )
    return override_deployment_info({"Model": info}, schema)["Model"].deployment_config


def test_what_a_deploy_file_says_of_scaling_wins_over_the_builder() -> None:
    scaling = {
        "min_replicas": 0,
        "max_replicas": 3,
        "policy": {"policy_function": BY_LOAD, "policy_kwargs": {"high": 0.9}},
    }
    made = overridden(ModelConfig(name="demo-chat"), autoscaling_config=scaling).autoscaling_config
    assert made is not None
    assert (made.min_replicas, made.max_replicas) == (0, 3)
    assert made.policy.policy_kwargs == {"high": 0.9}
    assert overridden(ModelConfig(name="demo-chat"), num_replicas=5).num_replicas == 5


def test_a_number_of_replicas_in_the_file_does_not_undo_what_was_bought() -> None:
    """Serve keeps both and scales; a deploy file with both is refused before it gets there."""
    bought = ProvisionedConfig(min_throughput=1, max_throughput=2, replica_throughput=1)
    made = overridden(ModelConfig(name="demo-chat", provisioned=bought), num_replicas=5).autoscaling_config
    assert made is not None
    assert (made.min_replicas, made.max_replicas) == (1, 2)
