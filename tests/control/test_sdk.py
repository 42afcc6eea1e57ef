"""The unmodified databricks-sdk makes, moves and removes an endpoint on Ray under load; none of it fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import pytest
from databricks.sdk.errors import NotFound
from databricks.sdk.service import serving

from tests.clients.test_databricks_sdk import workspace
from tests.control.server import MODEL, READY_S, Controlled
from tests.deploy.load import constant_load, more

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

NAME: Final = "sailor"
WAIT: Final = timedelta(seconds=READY_S)


@pytest.mark.full
async def test_an_endpoint_lives_by_the_sdk_under_load(controlled_server: Controlled) -> None:
    server = controlled_server.server
    api = workspace(str(server.client.base_url).rstrip("/")).serving_endpoints
    one = serving.ServedEntityInput(entity_name=MODEL, provisioned_model_units=1)
    two = serving.ServedEntityInput(entity_name=MODEL, entity_version="2", provisioned_model_units=1)
    config = serving.EndpointCoreConfigInput(name=NAME, served_entities=[one])
    made = await asyncio.to_thread(api.create_and_wait, NAME, config=config, timeout=WAIT)
    assert made.state.ready is serving.EndpointStateReady.READY
    assert made.task == "llm/v1/chat"
    async with constant_load(server, NAME) as log:
        await more(log)
        moved = await asyncio.to_thread(api.update_config_and_wait, NAME, served_entities=[two], timeout=WAIT)
        await more(log)
    log.assert_nothing_was_lost()
    assert [each.entity_version for each in moved.config.served_entities] == ["2"]
    assert b"serve_app_requests_total" in await asyncio.to_thread(
        lambda: api.export_metrics(NAME).contents.read()
    )
    assert (await asyncio.to_thread(api.build_logs, NAME, f"{MODEL}-2")).logs
    await asyncio.to_thread(api.delete, NAME)
    with pytest.raises(NotFound):
        await asyncio.to_thread(api.get, NAME)
