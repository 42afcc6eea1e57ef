"""Routes of endpoints: commands, shapes, and refusals that name the field and its range."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import Unavailable
from serve_app.types import Scope
from serve_app.types.control import CreateEndpoint, EntityWanted, Grant, UpdateConfig
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import bearer, gateway
from tests.unit.api.management.managed import BODY, ENTITY, ROOT, described, managed


async def test_an_endpoint_is_made_shown_listed_and_removed() -> None:
    management = FakeManagement()
    async with managed(management) as g:
        made = described(g, "POST", ROOT, await g.post(ROOT, BODY))
        assert (made["name"], made["id"], made["kind"]) == ("talk", "e-01", "pay_per_token")
        assert made["state"] == {"ready": "NOT_READY", "config_update": "IN_PROGRESS"}
        assert "config" not in made
        (entity,) = made["pending_config"]["served_entities"]
        assert (entity["name"], entity["entity_name"], entity["entity_version"]) == (
            "harbor-8b-2", "harbor-8b", "2",
        )  # fmt: skip
        assert entity["state"] == {"deployment": "DEPLOYMENT_CREATING"}
        assert made["creation_timestamp"] > 10**12, "milliseconds"

        shown = described(g, "GET", f"{ROOT}/{{endpoint}}", await g.client.get(f"{ROOT}/talk"))
        assert shown["state"] == {"ready": "READY", "config_update": "NOT_UPDATING"}
        assert shown["config"]["config_version"] == 1
        assert shown["config"]["traffic_config"]["routes"] == [
            {
                "served_model_name": "harbor-8b-2",
                "served_entity_name": "harbor-8b-2",
                "traffic_percentage": 100,
            }
        ]
        assert "pending_config" not in shown
        listed = described(g, "GET", ROOT, await g.client.get(ROOT))
        assert listed == {"endpoints": [shown]}

        gone = described(g, "DELETE", f"{ROOT}/{{endpoint}}", await g.client.delete(f"{ROOT}/talk"))
        assert gone == {}
        missing = await g.client.get(f"{ROOT}/talk")
        assert (missing.status_code, missing.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


async def test_without_a_control_plane_every_route_says_which_setting_is_off() -> None:
    async with gateway() as g:
        for method, path in (("GET", ROOT), ("POST", ROOT), ("DELETE", f"{ROOT}/talk")):
            answer = await g.client.request(method, path)
            told = described(g, method, path.replace("/talk", "/{endpoint}"), answer)
            assert (answer.status_code, told["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
            assert "control.enabled" in told["message"]


async def test_reading_takes_either_scope_and_changing_takes_manage() -> None:
    asks, ask_line = new_key("asks", [Scope.INFERENCE])
    manages, manage_line = new_key("manages", [Scope.MANAGE])
    scrapes, scrape_line = new_key("scrapes", [Scope.METRICS])
    async with managed(keys=f"{ask_line} {manage_line} {scrape_line}") as g:
        assert (await g.post(ROOT, BODY, headers=bearer(manages))).status_code == 200
        for key, status in ((asks, 200), (manages, 200), (scrapes, 403)):
            for path in (ROOT, f"{ROOT}/talk"):
                answer = await g.client.get(path, headers=bearer(key))
                assert answer.status_code == status, (key, path)
        refused = await g.post(ROOT, BODY, headers=bearer(asks))
        told = (refused.json()["error_code"], refused.json()["message"])
        assert told == ("PERMISSION_DENIED", "the API key lacks the scope 'manage'")
        assert (await g.client.get(ROOT, headers=bearer(scrapes))).json()["message"] == (
            "the API key lacks the scope 'inference' or 'manage'"
        )


async def test_what_a_caller_may_not_see_is_as_unknown_as_none() -> None:
    asks, ask_line = new_key("asks", [Scope.INFERENCE])
    manages, manage_line = new_key("manages", [Scope.MANAGE])
    ann = Grant(principal="ann", kind="user_name", level="CAN_QUERY")
    async with managed(keys=f"{ask_line} {manage_line}") as g:
        await g.post(ROOT, BODY, headers=bearer(manages))
        g.directory.permit({"talk": [ann]})
        for path in (f"{ROOT}/talk", f"{ROOT}/talk/openapi"):
            assert (await g.client.get(path, headers=bearer(asks))).status_code == 404, path
            assert (await g.client.get(path, headers=bearer(manages))).status_code == 200, path
        assert (await g.client.get(ROOT, headers=bearer(asks))).json() == {"endpoints": []}


async def test_bought_throughput_decides_the_kind() -> None:
    management = FakeManagement()
    fields: list[dict[str, Any]] = [
        {"provisioned_model_units": 50},
        {"max_provisioned_throughput": 100},
        {"min_provisioned_concurrency": 4, "max_provisioned_concurrency": 8},
        {"workload_size": "Small"},
    ]
    async with managed(management) as g:
        for number, more in enumerate(fields):
            body = {"name": f"e{number}", "config": {"served_entities": [{**ENTITY, **more}]}}
            assert (await g.post(ROOT, body)).json()["kind"] == "provisioned_throughput", more
            command = management.commands[-1]
            assert isinstance(command, CreateEndpoint)
            (wanted,) = command.config.entities
            assert wanted == EntityWanted(
                entity_name="harbor-8b", entity_version="2", name="harbor-8b-2", **more
            )


async def test_fields_without_an_effect_are_kept_and_returned() -> None:
    kept = {
        "budget_policy_id": "b-1",
        "email_notifications": {"on_update_failure": ["ops@example.org"]},
        "route_optimized": True,
        "telemetry_config": {"telemetry_profile_id": "p"},
    }
    replica = {"environment_vars": {"A": "b"}, "instance_profile_arn": "arn", "workload_type": "CPU"}
    body = {
        **kept,
        "name": "talk",
        "description": "what people see",
        "tags": [{"key": "team", "value": "sea"}, {"key": "spare"}],
        "rate_limits": [{"calls": 5, "renewal_period": "minute"}],
        "config": {"name": "talk", "served_entities": [{**ENTITY, **replica}]},
    }
    async with managed() as g:
        made = described(g, "POST", ROOT, await g.post(ROOT, body))
    assert {name: made[name] for name in kept} == kept
    assert {name: made["pending_config"]["served_entities"][0][name] for name in replica} == replica
    assert made["description"] == "what people see"
    assert made["tags"] == [{"key": "spare", "value": ""}, {"key": "team", "value": "sea"}]
    assert made["ai_gateway"] == {
        "rate_limits": [{"calls": 5, "renewal_period": "minute", "key": "endpoint"}]
    }


async def test_older_names_mean_the_same() -> None:
    management = FakeManagement()
    old = {"model_name": "harbor-8b", "model_version": "2", "scale_to_zero_enabled": True}
    async with managed(management) as g:
        body = {"name": "talk", "config": {"served_models": [old]}}
        assert (await g.post(ROOT, body)).status_code == 200
    command = management.commands[-1]
    assert isinstance(command, CreateEndpoint)
    assert command.config.entities == (
        EntityWanted(
            entity_name="harbor-8b", entity_version="2", name="harbor-8b-2", scale_to_zero_enabled=True
        ),
    )


async def test_an_update_serves_the_former_configuration_until_it_is_ready() -> None:
    management = FakeManagement(looks=2)
    two = {
        "served_entities": [ENTITY, {**ENTITY, "entity_version": "3", "name": "new"}],
        "traffic_config": {
            "routes": [
                {"served_model_name": "harbor-8b-2", "traffic_percentage": 90},
                {"served_entity_name": "new", "traffic_percentage": 10},
            ]
        },
    }
    async with managed(management) as g:
        await g.post(ROOT, BODY)
        for _ in range(2):
            await g.client.get(f"{ROOT}/talk")
        answer = await g.client.put(f"{ROOT}/talk/config", json=two)
        shown = described(g, "PUT", f"{ROOT}/{{endpoint}}/config", answer)
        assert shown["state"] == {"ready": "READY", "config_update": "IN_PROGRESS"}
        assert shown["config"]["config_version"] == 1
        assert shown["pending_config"]["config_version"] == 2
        busy = await g.client.put(f"{ROOT}/talk/config", json=two)
        assert (busy.status_code, busy.json()["error_code"]) == (409, "RESOURCE_CONFLICT")
        taken = await g.post(ROOT, BODY)
        assert (taken.status_code, taken.json()["error_code"]) == (409, "RESOURCE_ALREADY_EXISTS")


async def test_what_an_update_leaves_out_is_as_it_was() -> None:
    management = FakeManagement()
    shares = [
        {"served_entity_name": "old", "traffic_percentage": 70},
        {"served_entity_name": "new", "traffic_percentage": 30},
    ]
    entities = [{**ENTITY, "name": "old"}, {**ENTITY, "name": "new", "scale_to_zero_enabled": True}]
    body = {"name": "talk", "config": {"served_entities": entities, "traffic_config": {"routes": shares}}}
    async with managed(management) as g:
        await g.post(ROOT, body)
        await g.client.get(f"{ROOT}/talk")
        moved = [{**shares[0], "traffic_percentage": 0}, {**shares[1], "traffic_percentage": 100}]
        put = {"traffic_config": {"routes": moved}}
        assert (await g.client.put(f"{ROOT}/talk/config", json=put)).status_code == 200
        command = management.commands[-1]
        assert isinstance(command, UpdateConfig)
        assert [each.name for each in command.config.entities] == ["old", "new"]
        assert command.config.entities[1].scale_to_zero_enabled
        assert command.config.traffic == {"old": 0, "new": 100}

        await g.client.get(f"{ROOT}/talk")
        more = {"served_entities": [*entities, {**ENTITY, "name": "third"}]}
        assert (await g.client.put(f"{ROOT}/talk/config", json=more)).status_code == 200
        command = management.commands[-1]
        assert isinstance(command, UpdateConfig)
        assert command.config.traffic == {"old": 0, "new": 100}


async def test_bought_units_have_routes_of_their_own() -> None:
    management = FakeManagement()
    units = {"served_entities": [{**ENTITY, "provisioned_model_units": 50, "burst_scaling_enabled": True}]}
    async with managed(management) as g:
        made = await g.post(f"{ROOT}/pt", {"name": "talk", "config": units})
        assert described(g, "POST", f"{ROOT}/pt", made)["kind"] == "provisioned_throughput"
        await g.client.get(f"{ROOT}/talk")
        moved = await g.client.put(f"{ROOT}/pt/talk/config", json={"config": units})
        described(g, "PUT", f"{ROOT}/pt/{{endpoint}}/config", moved)
        assert isinstance(management.commands[-1], UpdateConfig)
        assert management.commands[-1].name == "talk"
        for path, method in ((f"{ROOT}/pt", "POST"), (f"{ROOT}/pt/talk/config", "PUT")):
            bare = {"name": "more", "config": {"served_entities": [ENTITY]}}
            refused = await g.client.request(
                method, path, json=bare if method == "POST" else {"config": bare["config"]}
            )
            assert (
                "config.served_entities.0.provisioned_model_units: is required" in refused.json()["message"]
            )


def config(**fields: Any) -> dict[str, Any]:
    return {"name": "talk", "config": {"served_entities": [{**ENTITY, **fields}]}}


def routes(*shares: tuple[str, int]) -> dict[str, Any]:
    listed = [{"served_entity_name": name, "traffic_percentage": share} for name, share in shares]
    two = [{**ENTITY, "name": "a"}, {**ENTITY, "name": "b"}]
    return {"name": "talk", "config": {"served_entities": two, "traffic_config": {"routes": listed}}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "name: is required"),
        ({"name": "talk"}, "config: is required"),
        ({"name": "talk", "config": {}}, "config.served_entities: is required: a list of 1 to 10 objects"),
        ({**config(), "name": "chat"}, "name: chat is reserved for a route"),
        ({**BODY, "name": "pt"}, "name: pt is reserved"),
        ({**BODY, "name": "a b"}, "name: must be 1 to 63 characters"),
        ({**BODY, "name": "x" * 64}, "name: must be 1 to 63 characters"),
        ({**BODY, "name": 7}, "name: must be 1 to 63 characters"),
        ({**BODY, "nonsense": 1}, 'json: unknown field "nonsense"'),
        (config(nonsense=1), 'json: unknown field "nonsense"'),
        (config(entity_version="two"), "config.served_entities.0.entity_version: must be a whole number"),
        (config(entity_name=None), "config.served_entities.0.entity_name: is required"),
        (config(external_model={"provider": "x"}), "config.served_entities.0.external_model: is not served"),
        (config(provisioned_model_units=0), "provisioned_model_units: must be an integer from 1 to 1000000"),
        (config(workload_size="Huge"), "workload_size: must be one of: Small, Medium, Large"),
        (config(scale_to_zero_enabled="yes"), "scale_to_zero_enabled: must be true or false"),
        (config(min_provisioned_throughput=9, max_provisioned_throughput=3),
         "config.served_entities.0.min_provisioned_throughput: must not exceed max_provisioned_throughput"),
        (config(environment_vars={"A": 1}), "environment_vars: must map up to"),
        ({"name": "talk", "config": {"served_entities": [ENTITY] * 11}}, "must be a list of 1 to 10 objects"),
        ({"name": "talk", "config": {"served_entities": [ENTITY] * 2}}, "harbor-8b-2 is there twice"),
        ({"name": "talk", "config": {"served_entities": [3]}}, "config.served_entities.0: must be an object"),
        ({"name": "talk", "config": {"served_entities": [ENTITY, {**ENTITY, "name": "b"}]}},
         "config.traffic_config: is required: the shares of harbor-8b-2, b, adding up to 100"),
        ({"name": "talk", "config": {"served_entities": [ENTITY], "served_models": [{"model_name": "m"}]}},
         "config.served_models: means served_entities; give one of the two"),
        ({"name": "talk", "config": {"served_entities": [ENTITY], "auto_capture_config": {"enabled": True}}},
         "config.auto_capture_config: is not kept; use inference_table_config"),
        (routes(("a", 50), ("b", 49)), "config.traffic_config.routes: the percentages add up to 99"),
        (routes(("a", 50), ("a", 50)), "config.traffic_config.routes.1.served_entity_name: a is there twice"),
        (routes(("a", 50), ("c", 50)), "routes.1.served_entity_name: must be one of the served entities: a"),
        (routes(("a", 101)), "traffic_percentage: must be an integer from 0 to 100"),
        ({**BODY, "tags": [{"key": ""}]}, "tags.0.key: must be a string of 1 to 256 characters"),
        ({**BODY, "tags": [{"value": "x"}]}, "tags.0.key: is required"),
        ({**BODY, "rate_limits": [{"key": "user"}]}, "rate_limits.0.calls: is required"),
        ({**BODY, "ai_gateway": {"rate_limits": [{"key": "user_group", "calls": 1}]}},
         "ai_gateway.rate_limits.0: principal: a limit of key 'user_group' must name its principal"),
        ({**BODY, "ai_gateway": {"guardrails": {"input": {"pii": {"behavior": "HIDE"}}}}},
         "ai_gateway.guardrails.input.pii.behavior: must be one of: NONE, BLOCK, MASK"),
        ({**BODY, "task": "llm/v1/paint"}, "task: must be one of"),
        ([], "the body must be a JSON object"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_named_with_its_range(body: Any, message: str) -> None:
    management = FakeManagement()
    async with managed(management) as g:
        answer = await g.post(ROOT, body)
        told = described(g, "POST", ROOT, answer)
    assert answer.status_code == 400
    assert message in told["message"]
    assert told["error_code"] in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
    assert not management.commands


async def test_a_control_plane_that_is_away_is_503() -> None:
    management = FakeManagement(refuse=Unavailable("the control plane restarts", retry_after_s=2.0))
    async with managed(management) as g:
        answer = await g.client.get(ROOT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error_code"] == "TEMPORARILY_UNAVAILABLE"


async def test_discovery_paths_are_not_found() -> None:
    async with managed() as g:
        answer = await g.client.get("/.well-known/databricks-config")
    assert answer.status_code == 404
