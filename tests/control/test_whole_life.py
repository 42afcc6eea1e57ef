"""An endpoint is made, scaled, moved to a new version and removed under load, and no request fails.

The databricks-sdk is unmodified, and the commands are processes of their own.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any, Final, Protocol

import pytest
from databricks.sdk.errors import NotFound
from databricks.sdk.service import serving

from tests.clients.test_databricks_sdk import workspace
from tests.control.server import MODEL, READY_S, Controlled
from tests.deploy.load import constant_load, more

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

NAME: Final = "sailor"
WAIT: Final = timedelta(seconds=READY_S)


class Operator(Protocol):
    """Who changes the endpoint. Each call returns once the change is in force."""

    async def create(self) -> None: ...
    async def scale(self, units: int) -> None: ...
    async def move(self, version: str) -> None: ...
    async def delete(self) -> None: ...


class Sdk:
    """By `WorkspaceClient.serving_endpoints`."""

    def __init__(self, url: str) -> None:
        self._api: Any = workspace(url).serving_endpoints

    async def create(self) -> None:
        config = serving.EndpointCoreConfigInput(name=NAME, served_entities=[_entity(1)])
        made = await asyncio.to_thread(self._api.create_and_wait, NAME, config=config, timeout=WAIT)
        assert made.state.ready is serving.EndpointStateReady.READY
        assert made.task == "llm/v1/chat"

    async def scale(self, units: int) -> None:
        await self._update(_entity(units))

    async def move(self, version: str) -> None:
        moved = await self._update(_entity(1, version))
        assert [each.entity_version for each in moved.config.served_entities] == [version]
        page = await asyncio.to_thread(lambda: self._api.export_metrics(NAME).contents.read())
        assert b"serve_app_requests_total" in page
        assert (await asyncio.to_thread(self._api.build_logs, NAME, f"{MODEL}-{version}")).logs

    async def delete(self) -> None:
        await asyncio.to_thread(self._api.delete, NAME)
        with pytest.raises(NotFound):
            await asyncio.to_thread(self._api.get, NAME)

    async def _update(self, entity: serving.ServedEntityInput) -> Any:
        return await asyncio.to_thread(
            self._api.update_config_and_wait, NAME, served_entities=[entity], timeout=WAIT
        )


class Commands:
    """By `serve-app endpoints`."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def create(self) -> None:
        await self._run("create", NAME, MODEL, "--units", "1")

    async def scale(self, units: int) -> None:
        await self._run("update", NAME, "--units", str(units))

    async def move(self, version: str) -> None:
        await self._run("update", NAME, f"{MODEL}@{version}", "--units", "1")
        assert f"{MODEL}-{version}" in await self._run("get", NAME)
        assert await self._run("logs", NAME, "--build")

    async def delete(self) -> None:
        await self._run("delete", NAME)
        assert NAME not in await self._run("list")

    async def _run(self, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "serve_app.cli", "endpoints", *words, "--url", self._url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), READY_S)
        assert process.returncode == 0, err.decode()
        return out.decode()


@pytest.mark.parametrize("by", [Sdk, Commands], ids=["sdk", "commands"])
async def test_an_endpoint_lives_under_load(by: type[Sdk | Commands], controlled_server: Controlled) -> None:
    server = controlled_server.server
    operator: Operator = by(str(server.client.base_url).rstrip("/"))
    async with constant_load(server, MODEL) as neighbours:
        await more(neighbours)
        await operator.create()
        async with constant_load(server, NAME) as log:
            await more(log)
            await operator.scale(2)
            await more(log)
            await operator.move("2")
            await more(log)
        await operator.delete()
        await more(neighbours)
    log.assert_nothing_was_lost()
    neighbours.assert_nothing_was_lost()


def _entity(units: int, version: str | None = None) -> serving.ServedEntityInput:
    return serving.ServedEntityInput(entity_name=MODEL, entity_version=version, provisioned_model_units=units)
