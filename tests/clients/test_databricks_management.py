"""The unmodified databricks-sdk and MLflow's deployments client manage endpoints over a real socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from databricks.sdk.errors import (
    BadRequest,
    InvalidParameterValue,
    NotFound,
    OperationFailed,
    PermissionDenied,
    ResourceAlreadyExists,
    ResourceConflict,
    Unauthenticated,
)
from databricks.sdk.service import serving
from openapi_spec_validator import validate

from serve_app.accounts.keys import new_key
from serve_app.api.backend import Management
from serve_app.types import Scope
from tests.clients.test_databricks_sdk import workspace
from tests.support.fake_cluster import FakeCluster, plane_over
from tests.support.fakes_backend import DIMENSIONS, WORDS, FakeBackend, embedder_info, model_info
from tests.support.gateway import directory_of, fake_app, served

T = TypeVar("T")

TEXT: Final = "".join(WORDS)
# Of the deploy file; what a test makes has other names.
DECLARED: Final[list[dict[str, Any]]] = [
    {"name": "talk", "served_entities": [{"model": "demo"}]},
    {"name": "text", "task": "llm/v1/completions", "served_entities": [{"model": "demo"}]},
    {"name": "embed", "task": "llm/v1/embeddings", "served_entities": [{"model": "embedder"}]},
]
ENTITY: Final = serving.ServedEntityInput(
    entity_name="demo-chat", entity_version="2", provisioned_model_units=1
)
HELLO: Final = [serving.ChatMessage(role=serving.ChatMessageRole.USER, content="Hello!")]
READY: Final = serving.EndpointStateReady.READY
WAIT: Final = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def _polls_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits for seconds between two polls."""
    short = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(0.02))
    monkeypatch.setattr(serving, "time", short)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def management(tmp_path: Path, cluster: FakeCluster) -> AsyncIterator[Management]:
    """The control plane on SQLite, over a cluster that runs nothing."""
    async with plane_over(tmp_path, cluster, declared={"endpoints": DECLARED}) as (plane, _):
        yield plane


@asynccontextmanager
async def server(management: Management, **options: Any) -> AsyncIterator[str]:
    """The URL of a gateway with a control plane."""
    backend = FakeBackend(infos=[model_info(), embedder_info()])
    app = fake_app(backend, directory=directory_of(backend, DECLARED), management=management, **options)
    async with served(app) as (host, port):
        yield f"http://{host}:{port}"


@pytest.fixture
async def url(management: Management) -> AsyncIterator[str]:
    """A gateway that asks for no keys."""
    async with server(management) as found:
        yield found


async def call(url: str, work: Callable[[Any], T], token: str = "unused") -> T:
    """`work` with the SDK's API of endpoints. The SDK blocks, so it has a thread."""
    return await asyncio.to_thread(lambda: work(workspace(url, token).serving_endpoints))


def core(*entities: serving.ServedEntityInput, name: str = "harbor") -> serving.EndpointCoreConfigInput:
    return serving.EndpointCoreConfigInput(name=name, served_entities=list(entities))


async def test_an_endpoint_lives_from_create_to_delete(url: str) -> None:
    made = await call(
        url,
        lambda api: api.create_and_wait(
            "harbor",
            config=core(ENTITY),
            description="for sailors",
            tags=[serving.EndpointTag("team", "sea")],
            ai_gateway=serving.AiGatewayConfig(fallback_config=serving.FallbackConfig(enabled=True)),
            timeout=WAIT,
        ),
    )
    assert (made.name, made.task, made.description) == ("harbor", "llm/v1/chat", "for sailors")
    assert made.state.ready is READY
    assert made.state.config_update is serving.EndpointStateConfigUpdate.NOT_UPDATING
    assert made.permission_level is serving.ServingEndpointDetailedPermissionLevel.CAN_MANAGE
    assert made.ai_gateway.fallback_config.enabled
    (entity,) = made.config.served_entities
    assert (entity.name, entity.entity_version, entity.provisioned_model_units) == ("demo-chat-2", "2", 1)
    assert entity.state.deployment is serving.ServedModelStateDeployment.DEPLOYMENT_READY
    assert made.config.traffic_config.routes[0].traffic_percentage == 100

    got = await call(url, lambda api: api.get("harbor"))
    assert got.as_dict() == made.as_dict()
    listed = {each.name: each for each in await call(url, lambda api: list(api.list()))}
    assert set(listed) == {"talk", "text", "embed", "harbor"}
    assert listed["harbor"].id == made.id
    assert listed["embed"].task == "llm/v1/embeddings"
    await call(url, lambda api: api.delete("harbor"))
    with pytest.raises(NotFound):
        await call(url, lambda api: api.get("harbor"))


async def test_a_configuration_is_replaced(url: str) -> None:
    new = serving.ServedEntityInput(entity_name="demo-chat", entity_version="1", name="new")
    shares = serving.TrafficConfig(
        routes=[
            serving.Route(served_entity_name="demo-chat-2", traffic_percentage=90),
            serving.Route(served_model_name="new", traffic_percentage=10),
        ]
    )
    await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
    moved = await call(
        url,
        lambda api: api.update_config_and_wait(
            "harbor", served_entities=[ENTITY, new], traffic_config=shares, timeout=WAIT
        ),
    )
    assert moved.config.config_version == 2
    assert {
        each.served_entity_name: each.traffic_percentage for each in moved.config.traffic_config.routes
    } == {
        "demo-chat-2": 90,
        "new": 10,
    }
    old = serving.ServedModelInput(False, "demo-chat", "1", provisioned_model_units=1)
    former = await call(
        url, lambda api: api.update_config_and_wait("harbor", served_models=[old], timeout=WAIT)
    )
    assert [each.entity_version for each in former.config.served_entities] == ["1"]


async def test_bought_throughput_has_calls_of_its_own(url: str) -> None:
    def bought(units: int) -> serving.PtEndpointCoreConfig:
        return serving.PtEndpointCoreConfig(
            served_entities=[serving.PtServedModel("demo-chat", units, entity_version="2")]
        )

    made = await call(
        url,
        lambda api: api.create_provisioned_throughput_endpoint_and_wait("harbor", bought(1), timeout=WAIT),
    )
    assert made.config.served_entities[0].provisioned_model_units == 1
    moved = await call(
        url,
        lambda api: api.update_provisioned_throughput_endpoint_config_and_wait(
            "harbor", bought(2), timeout=WAIT
        ),
    )
    assert moved.config.served_entities[0].provisioned_model_units == 2


async def test_safety_needs_no_model_where_the_server_has_a_judge(tmp_path: Path) -> None:
    """As Databricks' own guardrails, which bring their model. Without a judge it is a 400."""
    safe = serving.AiGatewayGuardrails(input=serving.AiGatewayGuardrailParameters(safety=True))
    declared = {"endpoints": DECLARED}
    async with (
        plane_over(tmp_path, FakeCluster(), declared=declared, guardrails_model="talk") as (plane, _),
        server(plane, guardrails_model="talk") as url,
    ):
        await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
        put = await call(url, lambda api: api.put_ai_gateway("harbor", guardrails=safe))
        assert put.guardrails.input.safety is True
        shown = await call(url, lambda api: api.get("harbor"))
        assert shown.ai_gateway.guardrails.input.safety is True
    async with plane_over(tmp_path, FakeCluster(), declared=declared) as (plane, _), server(plane) as url:
        with pytest.raises(BadRequest, match=r"guardrails\.model: must name an .*`guardrails_model`"):
            await call(url, lambda api: api.put_ai_gateway("harbor", guardrails=safe))


async def test_limits_guardrails_tags_and_notes(url: str) -> None:
    limit = serving.AiGatewayRateLimit(
        serving.AiGatewayRateLimitRenewalPeriod.MINUTE, calls=7, key=serving.AiGatewayRateLimitKey.USER
    )
    mask = serving.AiGatewayGuardrailParameters(
        pii=serving.AiGatewayGuardrailPiiBehavior(serving.AiGatewayGuardrailPiiBehaviorBehavior.MASK)
    )
    table = serving.AiGatewayInferenceTableConfig(
        catalog_name="c", schema_name="s", table_name_prefix="t", enabled=True
    )
    mail = serving.EmailNotifications(on_update_failure=["ops@example.org"])
    await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
    put = await call(
        url,
        lambda api: api.put_ai_gateway(
            "harbor",
            rate_limits=[limit],
            guardrails=serving.AiGatewayGuardrails(output=mask),
            usage_tracking_config=serving.AiGatewayUsageTrackingConfig(enabled=True),
            inference_table_config=table,
        ),
    )
    assert put.rate_limits == [limit]
    assert put.guardrails.output.pii == mask.pii
    assert put.usage_tracking_config.enabled
    assert put.inference_table_config == table
    old = serving.RateLimit(5, serving.RateLimitRenewalPeriod.MINUTE, key=serving.RateLimitKey.ENDPOINT)
    assert (await call(url, lambda api: api.put("harbor", rate_limits=[old]))).rate_limits == [old]
    tags = await call(
        url, lambda api: api.patch("harbor", add_tags=[serving.EndpointTag("a", "b")], delete_tags=["c"])
    )
    assert tags.tags == [serving.EndpointTag("a", "b")]
    noted = await call(url, lambda api: api.update_notifications("harbor", email_notifications=mail))
    assert noted.email_notifications == mail
    telemetry = serving.TelemetryConfig(telemetry_profile_id="p")
    shown = await call(url, lambda api: api.patch_telemetry_config("harbor", telemetry_config=telemetry))
    assert shown.telemetry_config == telemetry


async def test_every_task_is_queried(url: str) -> None:
    chat = await call(url, lambda api: api.query("talk", messages=HELLO))
    text = await call(url, lambda api: api.query("text", prompt="Once"))
    vectors = await call(url, lambda api: api.query("embed", input=["quay"]))
    assert chat.choices[0].message.content == TEXT
    assert text.choices[0].text.endswith(TEXT)
    assert len(vectors.data[0].embedding) == DIMENSIONS


async def test_metrics_documents_and_logs(url: str) -> None:
    await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
    await call(url, lambda api: api.query("talk", messages=HELLO))
    metrics = await call(url, lambda api: api.export_metrics("talk").contents.read())
    assert b'serve_app_requests_total{endpoint="talk"' in metrics
    document = await call(url, lambda api: json.loads(api.get_open_api("talk").contents.read()))
    validate(document)
    assert "/serving-endpoints/talk/invocations" in document["paths"]
    assert (await call(url, lambda api: api.logs("harbor", "demo-chat-2"))).logs
    assert (await call(url, lambda api: api.build_logs("harbor", "demo-chat-2"))).logs


async def test_permissions_by_id(management: Management) -> None:
    async with server(management) as url:
        made = await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
        levels = await call(url, lambda api: api.get_permission_levels(made.id))
        assert [each.permission_level.value for each in levels.permission_levels] == [
            "CAN_VIEW",
            "CAN_QUERY",
            "CAN_MANAGE",
        ]
        may = serving.ServingEndpointPermissionLevel
        ann = serving.ServingEndpointAccessControlRequest(user_name="ann", permission_level=may.CAN_QUERY)
        sea = serving.ServingEndpointAccessControlRequest(group_name="sea", permission_level=may.CAN_VIEW)
        await call(url, lambda api: api.set_permissions(made.id, access_control_list=[ann]))
        await call(url, lambda api: api.update_permissions(made.id, access_control_list=[sea]))
        found = await call(url, lambda api: api.get_permissions(made.id))
        assert found.object_type == "serving-endpoint"
        assert {
            each.user_name or each.group_name: each.all_permissions[0].permission_level
            for each in found.access_control_list
        } == {"ann": may.CAN_QUERY, "sea": may.CAN_VIEW}


async def test_errors_have_the_types_of_the_sdk(url: str, cluster: FakeCluster) -> None:
    gpt = serving.ExternalModel(serving.ExternalModelProvider.OPENAI, "gpt", "llm/v1/chat")
    foreign = serving.ServedEntityInput(name="x", external_model=gpt)
    unknown = serving.ServedEntityInput(entity_name="nobody", provisioned_model_units=1)
    other = serving.ServedEntityInput(entity_name="demo-chat", entity_version="1", provisioned_model_units=1)
    get = serving.ExternalFunctionRequestHttpMethod.GET
    await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
    with pytest.raises(ResourceAlreadyExists):
        await call(url, lambda api: api.create("harbor", config=core(ENTITY)))
    with pytest.raises(NotFound):
        await call(url, lambda api: api.update_config("nobody", served_entities=[ENTITY]))
    with pytest.raises(InvalidParameterValue, match=r"config\.served_entities: is required"):
        await call(url, lambda api: api.create("more", config=core()))
    with pytest.raises(InvalidParameterValue, match="external_model: is not served here"):
        await call(url, lambda api: api.create("more", config=core(foreign)))
    with pytest.raises(
        InvalidParameterValue, match=r"config\.served_entities\.0\.entity_name: no such model"
    ):
        await call(url, lambda api: api.create("more", config=core(unknown)))
    with pytest.raises(ResourceConflict, match="is declared in the deploy file"):
        await call(url, lambda api: api.update_config("talk", served_entities=[ENTITY]))
    cluster.held = {""}
    await call(url, lambda api: api.update_config("harbor", served_entities=[other]))
    with pytest.raises(ResourceConflict, match="is being updated"):
        await call(url, lambda api: api.update_config("harbor", served_entities=[ENTITY]))
    with pytest.raises(BadRequest, match="this server calls no other services"):
        await call(url, lambda api: api.http_request("connection", get, "/path"))


async def test_a_wait_ends_when_an_update_fails(url: str, cluster: FakeCluster) -> None:
    cluster.failing["2"] = "the weights are not there; check the path"
    with pytest.raises(OperationFailed):
        await call(url, lambda api: api.create_and_wait("harbor", config=core(ENTITY), timeout=WAIT))
    shown = await call(url, lambda api: api.get("harbor"))
    (entity,) = shown.pending_config.served_entities
    assert entity.state.deployment is serving.ServedModelStateDeployment.DEPLOYMENT_FAILED
    assert "check the path" in entity.state.deployment_state_message


async def test_keys_are_checked(management: Management) -> None:
    asks, line = new_key("asks", [Scope.INFERENCE])
    async with server(management, keys=line) as url:
        assert len(await call(url, lambda api: list(api.list()), asks)) == len(DECLARED)
        with pytest.raises(PermissionDenied, match="lacks the scope 'manage'"):
            await call(url, lambda api: api.create("harbor", config=core(ENTITY)), asks)
        with pytest.raises(Unauthenticated):
            await call(url, lambda api: list(api.list()), "sk-wrong")


async def test_mlflow_lists_gets_predicts_and_streams(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "unused")
    from mlflow.deployments import get_deploy_client  # not on import, which takes each worker a second

    client = get_deploy_client("databricks")

    def work() -> dict[str, Any]:
        config = {
            "name": "harbor",
            "config": {
                "served_entities": [
                    {"entity_name": "demo-chat", "entity_version": "2", "provisioned_model_units": 1}
                ]
            },
        }
        asked = {"messages": [{"role": "user", "content": "Hello!"}]}
        return {
            "created": client.create_endpoint(config=config),
            "listed": client.list_endpoints(),
            "got": client.get_endpoint("talk"),
            "predicted": client.predict(endpoint="talk", inputs=asked),
            "vectors": client.predict(endpoint="embed", inputs={"input": ["quay"]}),
            "streamed": list(client.predict_stream(endpoint="talk", inputs=asked)),
            "deleted": client.delete_endpoint("harbor"),
        }

    found = await asyncio.to_thread(work)
    assert found["created"].name == "harbor"
    assert [each["name"] for each in found["listed"]] == ["embed", "harbor", "talk", "text"]
    assert found["got"].state["config_update"] == "NOT_UPDATING"
    assert found["predicted"].choices[0]["message"]["content"] == TEXT
    assert len(found["vectors"].data[0]["embedding"]) == DIMENSIONS
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in found["streamed"]]
    assert "".join(deltas) == TEXT
