"""Logs, metrics and the OpenAPI document of one endpoint, and what is refused."""

from __future__ import annotations

from openapi_spec_validator import validate

from serve_app.accounts.keys import new_key
from serve_app.types import Scope
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import bearer
from tests.unit.api.management.managed import BODY, ROOT, described, managed

ENTITY = f"{ROOT}/talk/served-models/harbor-8b-2"


async def test_logs_of_an_entity() -> None:
    async with managed() as g:
        await g.post(ROOT, BODY)
        template = f"{ROOT}/{{endpoint}}/served-models/{{entity}}"
        logs = described(g, "GET", f"{template}/logs", await g.client.get(f"{ENTITY}/logs"))
        built = described(g, "GET", f"{template}/build-logs", await g.client.get(f"{ENTITY}/build-logs"))
        assert logs == {"logs": "harbor-8b-2 serves\n"}
        assert built == {"logs": "harbor-8b-2 was built\n"}
        missing = await g.client.get(f"{ROOT}/talk/served-models/nobody/logs")
        assert (missing.status_code, missing.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


async def test_metrics_are_of_this_endpoint_alone() -> None:
    endpoints = [{"name": name, "served_entities": [{"model": "demo"}]} for name in ("talk", "other")]
    async with managed(endpoints=endpoints) as g:
        await g.post(ROOT, BODY)
        for name in ("talk", "other"):
            assert (await g.chat(model=name)).status_code == 200
        answer = await g.client.get(f"{ROOT}/talk/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'serve_app_requests_total{endpoint="talk"' in answer.text
        assert 'serve_app_request_seconds_bucket{endpoint="talk"' in answer.text
        assert 'application="model-demo"' in answer.text
        assert 'endpoint="other"' not in answer.text
        assert "serve_app_requests_in_flight" not in answer.text, "of the whole gateway"
        assert (await g.client.get(f"{ROOT}/nobody/metrics")).status_code == 404


async def test_metrics_of_an_endpoint_that_is_not_up_are_empty() -> None:
    async with managed() as g:
        await g.post(ROOT, BODY)
        answer = await g.client.get(f"{ROOT}/talk/metrics")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_metrics_take_their_own_scope() -> None:
    asks, ask_line = new_key("asks", [Scope.INFERENCE])
    scrapes, scrape_line = new_key("scrapes", [Scope.METRICS])
    management = FakeManagement()
    async with managed(keys=f"{ask_line} {scrape_line}", management=management) as g:
        assert (await g.client.get(f"{ROOT}/talk/metrics", headers=bearer(asks))).status_code == 403
        assert (await g.client.get(f"{ROOT}/talk/metrics", headers=bearer(scrapes))).status_code == 404


async def test_the_document_of_an_endpoint_is_of_its_task() -> None:
    async with managed() as g:
        for name, task, field in (
            ("talk", "llm/v1/chat", "messages"),
            ("text", "llm/v1/completions", "prompt"),
            ("embed", "llm/v1/embeddings", "input"),
        ):
            await g.post(ROOT, {**BODY, "name": name, "task": task})
            document = described(
                g, "GET", f"{ROOT}/{{endpoint}}/openapi", await g.client.get(f"{ROOT}/{name}/openapi")
            )
            validate(document)
            path = f"/serving-endpoints/{name}/invocations"
            entity = f"/serving-endpoints/{name}/served-models/{{entity}}/invocations"
            assert list(document["paths"]) == [path, entity]
            content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            assert field in body["properties"]
            (parameter,) = (
                each for each in document["paths"][entity]["post"]["parameters"] if each["in"] == "path"
            )
            assert parameter["schema"]["enum"] == ["harbor-8b-2"]


async def test_calls_of_other_services_are_refused_in_words() -> None:
    async with managed() as g:
        answer = await g.post("/api/2.0/external-function", {"connection_name": "x", "method": "GET"})
        told = described(g, "POST", "/api/2.0/external-function", answer)
    assert answer.status_code == 400
    assert told["message"].startswith("connection_name: this server calls no other services")
