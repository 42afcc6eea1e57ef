"""Run-time endpoints on Ray: made, asked, changed under load and deleted, with no failed request."""

from __future__ import annotations

import pytest

from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EntityWanted,
    ListEndpoints,
    UpdateState,
)
from tests.control.server import MODEL, Controlled

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def test_an_endpoint_on_the_operators_replicas(controlled_server: Controlled) -> None:
    made = controlled_server
    wanted = ConfigWanted(entities=(EntityWanted(entity_name=MODEL),), traffic={})
    await made.do(CreateEndpoint(name="shared", config=wanted, is_provisioned=False))
    over_http = await made.server.client.get("/api/2.0/serving-endpoints/shared")
    assert over_http.json()["name"] == "shared", over_http.text
    shown = await made.until_settled("shared")
    assert shown.update is UpdateState.NOT_UPDATING
    assert shown.is_ready
    answer = await made.server.chat("shared", max_tokens=4)
    assert answer.status_code == 200
    assert answer.headers["served-model-name"] == MODEL
    listed = {each.name: each.declared for each in (await made.do(ListEndpoints())).endpoints}
    assert listed == {MODEL: True, "shared": False}
    await made.do(DeleteEndpoint(name="shared"))
