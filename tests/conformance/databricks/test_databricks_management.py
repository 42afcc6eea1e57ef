"""Errors of the management API, in Databricks' words whatever the caller's protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tests.conformance.databricks.test_databricks_routes import told
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import gateway

ROOT: Final = "/api/2.0/serving-endpoints"
ENTITIES: Final = {"served_entities": [{"entity_name": "demo"}]}
BODY: Final = {"name": "talk", "config": ENTITIES}


async def test_e15_without_a_control_plane() -> None:
    async with gateway() as g:
        told(await g.post(ROOT, BODY), 404, "ENDPOINT_NOT_FOUND", "control.enabled")


async def test_e16_a_name_that_is_taken() -> None:
    async with gateway(management=FakeManagement()) as g:
        assert (await g.post(ROOT, BODY)).status_code == 200
        told(await g.post(ROOT, BODY), 409, "RESOURCE_ALREADY_EXISTS", "talk")


async def test_e17_an_endpoint_that_is_updated_or_declared() -> None:
    management = FakeManagement()
    async with gateway(management=management) as g:
        await g.post(ROOT, BODY)
        put = await g.client.put(f"{ROOT}/talk/config", json=ENTITIES)
        told(put, 409, "RESOURCE_CONFLICT", "is being updated")
        management.endpoints["talk"] = replace(management.endpoints["talk"], declared=True)
        put = await g.client.put(f"{ROOT}/talk/config", json=ENTITIES)
        told(put, 409, "RESOURCE_CONFLICT", "deploy file")


async def test_every_error_has_databricks_shape_whatever_the_header_says() -> None:
    async with gateway(management=FakeManagement()) as g:
        answer = await g.client.get(f"{ROOT}/nobody", headers={"x-api-dialect": "openai"})
        told(answer, 404, "RESOURCE_DOES_NOT_EXIST")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_route_below_an_endpoint_that_nobody_has_is_a_404(method: str) -> None:
    async with gateway(management=FakeManagement()) as g:
        for path in (f"{ROOT}/talk/unknown", f"{ROOT}/talk/config/unknown", "/api/2.1/unity-catalog/models"):
            answer = await g.client.request(method, path, json={})
            told(answer, 404, "ENDPOINT_NOT_FOUND", "there is no such route")
        answer = await g.client.request(method, f"{ROOT}/talk", json={})
        told(answer, 405, "METHOD_NOT_ALLOWED", "this route takes DELETE, GET")
