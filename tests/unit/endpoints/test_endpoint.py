"""The catalogue: what a file may say, what is filled in, and how mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.endpoints.catalogue import Catalogue, CatalogueError, parse_catalogue
from serve_app.endpoints.endpoint import Endpoint, Kind, Task

TWO = [{"model": "m", "version": 1}, {"model": "m", "version": "2"}]


def parse(*endpoints: dict[str, Any]) -> Catalogue:
    return parse_catalogue({"endpoints": list(endpoints)})


def problems(*endpoints: Any) -> str:
    with pytest.raises(CatalogueError) as caught:
        parse(*endpoints)
    return str(caught.value)


def test_a_name_is_enough() -> None:
    (endpoint,) = parse({"name": "org/model"}).endpoints
    (entity,) = endpoint.served_entities
    assert (endpoint.kind, endpoint.task) == (Kind.PAY_PER_TOKEN, Task.CHAT)
    assert (entity.name, entity.model, entity.app) == ("org/model", "org/model", "model-org_2fmodel")
    assert endpoint.traffic == {"org/model": 100}


def test_entities_are_called_after_model_and_version() -> None:
    (endpoint,) = parse({"name": "e", "served_entities": TWO, "traffic": {"m-1": 90, "m-2": 10}}).endpoints
    assert [e.name for e in endpoint.served_entities] == ["m-1", "m-2"]
    assert [e.app for e in endpoint.served_entities] == ["model-m_v_1", "model-m_v_2"]
    found = endpoint.entity("m-2")
    assert found is not None
    assert found.version == "2"
    assert endpoint.entity("m") is None


def test_endpoints_may_share_an_application_or_own_theirs() -> None:
    catalogue = parse({"name": "a", "served_entities": [{"model": "m"}]}, {"name": "m"}, {"name": "x"})
    assert catalogue.apps == ("model-m", "model-x")


def test_a_catalogue_survives_the_way_through_a_deploy_file() -> None:
    catalogue = parse(
        {"name": "e", "served_entities": TWO, "traffic": {"m-1": 90, "m-2": 10}, "salt": "s"},
        {
            "name": "p",
            "kind": "provisioned_throughput",
            "served_entities": [{"model": "m", "app": "own", "max_provisioned_throughput": 5}],
            "price": {"output_per_million": 1.5},
        },
        {"name": "l", "limits": {"requests_per_minute": 5}},
    )
    assert parse_catalogue(catalogue.dump()) == catalogue


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ({}, "endpoints[0].name: Field required"),
        ({"name": "a b"}, "endpoints[0].name (endpoint 'a b'): must be 1 to 256 characters"),
        ({"name": "chat"}, "reserved for a route"),
        (
            {"name": "e", "trafic": {}},
            "[0].trafic (endpoint 'e'): unknown key; did you mean 'traffic'?",
        ),
        ({"name": "e", "served_entities": [{"modle": "m"}]}, "did you mean 'model'?"),
        (
            {"name": "e", "limits": {"rpm": 3}},
            "limits.rpm (endpoint 'e'): unknown key; known: requests",
        ),
        ({"name": "e", "limits": {"requests_per_minute": 0}}, "greater than or equal to 1"),
        ({"name": "e", "kind": "ppt"}, "'pay_per_token' or 'provisioned_throughput'"),
        ({"name": "e", "task": "chat"}, "llm/v1/chat"),
        ({"name": "e", "served_entities": TWO}, "add up to 0; they must add up to 100"),
        ({"name": "e", "served_entities": TWO, "traffic": {"m-1": 90, "m-2": 11}}, "up to 101"),
        ({"name": "e", "served_entities": TWO, "traffic": {"m-1": 99.5, "m-2": 0.5}}, "valid integer"),
        (
            {"name": "e", "served_entities": TWO, "traffic": {"m-1": 110, "m-2": -10}},
            "or equal to 100",
        ),
        (
            {"name": "e", "served_entities": TWO, "traffic": {"m": 100}},
            "'m' is no served entity; there is: m-1",
        ),
        ({"name": "e", "served_entities": [TWO[0], TWO[0]], "traffic": {"m-1": 100}}, "'m-1' is there twice"),
        ({"name": "e", "served_entities": [{"model": "m", "version": "v2"}]}, "whole number from 1"),
        ({"name": "e", "served_entities": [{"model": "m"}] * 11}, "at most 10 items"),
        (
            {"name": "e", "served_entities": [{"model": "m", "app": "system"}]},
            "a model's application",
        ),
        ({"name": "e", "kind": "provisioned_throughput"}, "must list its dedicated entities"),
        (
            {"name": "e", "kind": "provisioned_throughput", "served_entities": [{"model": "m"}]},
            "needs max_provisioned_throughput",
        ),
        (
            {"name": "e", "served_entities": [{"model": "m", "max_provisioned_throughput": 5}]},
            "must not have max_provisioned_throughput",
        ),
        (
            {
                "name": "e",
                "kind": "provisioned_throughput",
                "served_entities": [
                    {"model": "m", "min_provisioned_throughput": 6, "max_provisioned_throughput": 5}
                ],
            },
            "must not exceed",
        ),
        (
            {
                "name": "e",
                "kind": "provisioned_throughput",
                "limits": {"requests_per_minute": 1},
                "served_entities": [{"model": "m", "max_provisioned_throughput": 5}],
            },
            "limits: only for kind pay_per_token",
        ),
    ],
)
def test_a_mistake_is_named_with_its_field(endpoint: dict[str, Any], said: str) -> None:
    assert said in problems(endpoint)


def test_all_mistakes_are_told_at_once() -> None:
    text = problems({"name": "a", "x": 1}, {"name": "b", "kind": "?"})
    assert "endpoints[0].x" in text
    assert "endpoints[1].kind" in text


def test_names_are_unique() -> None:
    assert "'a' is there twice" in problems({"name": "a"}, {"name": "a"})


def test_bought_replicas_are_nobody_elses() -> None:
    bought = {
        "name": "p",
        "kind": "provisioned_throughput",
        "served_entities": [{"model": "m", "max_provisioned_throughput": 5}],
    }
    assert "needs an application of its own" in problems(bought, {"name": "m"})


def test_one_application_serves_one_model() -> None:
    other = {"name": "o", "served_entities": [{"model": "n", "app": "model-m"}]}
    assert "serves 'm'" in problems({"name": "m"}, other)


@pytest.mark.parametrize("raw", [{"endpoint": []}, {"endpoints": "x"}, {"endpoints": [3]}, {"endpoints": {}}])
def test_what_is_no_catalogue_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(CatalogueError):
        parse_catalogue(raw)


def test_an_endpoint_can_be_made_in_python() -> None:
    assert Endpoint(name="m").served_entities[0].app == "model-m"


def test_settings_of_databricks_protocol() -> None:
    settings = {"stream_default": True, "system_prompt": "Be brief.", "max_n": 5, "max_tools": 64}
    (endpoint,) = parse({"name": "m", "databricks": settings}).endpoints
    assert (endpoint.databricks.system_prompt, endpoint.databricks.max_tool_properties) == ("Be brief.", 15)
    assert Catalogue(endpoints=(endpoint,)).dump()["endpoints"][0]["databricks"] == settings


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_n": 129}, "databricks.max_n"),
        ({"max_tools": 129}, "databricks.max_tools"),
        ({"system_prompt": ""}, "databricks.system_prompt"),
        ({"stream_defaul": True}, "did you mean 'stream_default'?"),
    ],
)
def test_wrong_settings_of_databricks_protocol_are_named(settings: dict[str, Any], problem: str) -> None:
    assert problem in problems({"name": "m", "databricks": settings})


def test_bought_throughput_has_no_system_prompt_of_ours() -> None:
    bought = {
        "name": "m",
        "kind": "provisioned_throughput",
        "served_entities": [{"model": "m", "max_provisioned_throughput": 10}],
        "databricks": {"system_prompt": "x"},
    }
    assert "system_prompt is only for kind pay_per_token" in problems(bought)
