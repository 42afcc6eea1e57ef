"""The document describes every route, is valid, and says what the code does."""

from __future__ import annotations

import json
from typing import Any, Final

import jsonschema_rs
import pytest
from openapi_spec_validator import validate

from serve_app import limits
from serve_app.api.ingress import RawRoute
from serve_app.api.openapi.document import plain
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app
from tests.support.openapi import fake_document

APP: Final = fake_app(FakeBackend())
ROUTES: Final = [route for route in APP.routes if isinstance(route, RawRoute)]
DOCUMENT: Final = fake_document()
MINDIE: Final = fake_document("mindie")
CHAT: Final = DOCUMENT["paths"]["/v1/chat/completions"]["post"]


def operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    ]


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.full)])
def test_an_independent_validator_accepts_it(every: int) -> None:
    """All of its schemas, and some of its paths: each takes a tenth of a second."""
    validate({**DOCUMENT, "paths": dict(list(DOCUMENT["paths"].items())[::every])})


def test_every_route_is_described() -> None:
    assert len(ROUTES) == len(APP.routes)
    routes = {(plain(route.path), method.lower()) for route in ROUTES for method in route.methods}
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert routes - {(path, "head") for path, _ in routes} == described


def test_every_protocol_of_a_path_is_described() -> None:
    assert all(entry.operation is not None for route in ROUTES for entry in route.entries)
    assert CHAT["tags"] == ["OpenAI", "MindIE", "Databricks", "OpenVINO Model Server"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/api/2.0/keys", {"all"}),
        (
            "/api/2.0/serving-endpoints/{endpoint}/comparison",
            {"metric", "since_timestamp", "confidence"},
        ),
    ],
)
def test_what_a_query_may_say_is_described(path: str, names: set[str]) -> None:
    parameters = DOCUMENT["paths"][path]["get"]["parameters"]
    assert {each["name"] for each in parameters if each["in"] == "query"} == names


def test_ids_of_operations_are_unique() -> None:
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(set(ids)) == len(ids)


def test_open_routes_need_no_key_and_all_others_do() -> None:
    for route in ROUTES:
        (method,) = (route.methods or set()) - {"HEAD"}
        operation = DOCUMENT["paths"][plain(route.path)][method.lower()]
        assert (operation.get("security") == []) is (route.entries[0].scope is None)
        assert ("401" in operation["responses"]) is (route.entries[0].scope is not None)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("n", {"type": "integer", "minimum": 1, "maximum": limits.MAX_N}),
        ("temperature", {"type": "number", "minimum": 0, "maximum": limits.MAX_TEMPERATURE}),
        ("top_p", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        ("user", {"type": "string", "minLength": 0, "maxLength": limits.MAX_USER_CHARS}),
    ],
)
def test_bounds_are_those_that_are_checked(name: str, bounds: dict[str, Any]) -> None:
    field = DOCUMENT["components"]["schemas"]["OpenAIChatBody"]["properties"][name]
    assert field["anyOf"] == [bounds, {"type": "null"}]


def test_the_header_that_chooses_a_protocol_has_the_paths_default() -> None:
    def default(document: dict[str, Any], path: str) -> str:
        parameters = document["paths"][path]["post"]["parameters"]
        (header,) = (each for each in parameters if each["name"] == "X-API-Dialect")
        assert set(header["schema"]["enum"]) >= {"openai", "mindie", "databricks", "ovms"}
        return header["schema"]["default"]

    assert default(DOCUMENT, "/v1/chat/completions") == "openai"
    assert default(MINDIE, "/v1/chat/completions") == "mindie"
    assert default(DOCUMENT, "/v3/chat/completions") == "ovms"


def test_streams_tell_the_schema_of_their_events() -> None:
    events = CHAT["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    data, done = events["properties"]["data"]["anyOf"]
    assert data["contentMediaType"] == "application/json"
    assert {"$ref": "#/components/schemas/OpenAIChatChunk"} in data["contentSchema"]["anyOf"]
    assert done == {"const": "[DONE]", "type": "string"}


def test_each_protocol_tells_its_own_errors() -> None:
    refused = CHAT["responses"]["400"]["content"]["application/json"]
    shapes = {each["$ref"].rpartition("/")[2] for each in refused["schema"]["anyOf"]}
    assert shapes == {"OpenAIErrorBody", "DatabricksErrorBody", "StringErrorBody"}
    assert set(CHAT["responses"]["422"]["content"]["application/json"]["schema"].values()) == {
        "#/components/schemas/MindIEErrorBody"
    }
    assert refused["examples"]["OpenAI: PromptTooLong"]["value"]["error"]["code"] == "context_length_exceeded"


def test_examples_match_their_schemas() -> None:
    seen = 0
    validators: dict[str, Any] = {}
    for name, operation in operations():
        answers = operation["responses"].values()
        for place in (operation.get("requestBody", {}), *answers):
            for content in place.get("content", {}).values():
                for title, example in content.get("examples", {}).items():
                    key = json.dumps(content["schema"], sort_keys=True)
                    if key not in validators:
                        schema = {**content["schema"], "components": DOCUMENT["components"]}
                        validators[key] = jsonschema_rs.validator_for(schema)
                    errors = [error.message for error in validators[key].iter_errors(example["value"])]
                    assert errors == [], f"{name}, {title}"
                    seen += 1
    assert seen > 500


def test_a_route_says_which_scope_it_needs() -> None:
    assert f"`{Scope.METRICS}`" in DOCUMENT["paths"]["/metrics"]["get"]["description"]
    assert f"`{Scope.INFERENCE}`" in CHAT["description"]
