"""All of `serve-app serve`, Ray included, is killed and started again over the same state directory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from serve_app.control.database.database import Database
from serve_app.errors import Unavailable
from tests.control.server import MODEL, READY_S, admitted, small_file
from tests.deploy.answers import completion, streamed
from tests.deploy.command import Command, command
from tests.deploy.deployment import COMPLETIONS
from tests.support.gateway import bearer
from tests.support.invariants import WAIT_S
from tests.support.ledger import read_rows

# On the loop of the others: it must go on turning for the handles they have.
pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

ENDPOINTS: Final = "/api/2.0/serving-endpoints"
KEYS: Final = "/api/2.0/keys"
NAMES: Final = (MODEL, "shared", "bought")


async def test_endpoints_keys_and_usage_outlive_the_whole_server(tmp_path: Path) -> None:
    raw = small_file()
    with command(raw, tmp_path) as served:
        await served.until_ready()
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            admin = await new_key(client, "admin", ["inference", "manage"])
            client.headers.update(bearer(admin))
            alice = await new_key(client, "alice", ["inference"], endpoints=["bought"])
            gone = await new_key(client, "gone", ["inference"])
            assert (await client.delete(f"{KEYS}/gone")).status_code == 200
            before = [await created(client, "shared", None), await created(client, "bought", 1)]
            answers = [await streamed(client, completion(name)) for name in NAMES]
            running = asyncio.create_task(endless(client))
            await until_admitted(served.usage, len(answers) + 1)
            await kill_all(served)
            with contextlib.suppress(httpx.HTTPError):  # cut
                await running
    with command(raw, tmp_path) as served:
        await served.until_ready()
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S, headers=bearer(admin)) as client:
            again = [await streamed_once_up(client, name) for name in NAMES]
            assert [each.text for each in again] == [each.text for each in answers]
            after = [await read(client, name) for name in ("shared", "bought")]
            assert [each["id"] for each in after] == [each["id"] for each in before]
            assert [each["config"] for each in after] == [each["config"] for each in before]
            assert await status(client, alice, "bought") == 200
            assert await status(client, alice, MODEL) == 404
            assert await status(client, gone, MODEL) == 401
        await until_whole(tmp_path / "usage", {each.id for each in answers + again})


async def new_key(client: httpx.AsyncClient, name: str, scopes: list[str], **fields: Any) -> str:
    """A key that works."""
    made = await client.post(KEYS, json={"name": name, "scopes": scopes, **fields})
    assert made.status_code == 200, made.text
    key = str(made.json()["key"])
    async with asyncio.timeout(READY_S):
        while (await client.get("/v1/models", headers=bearer(key))).status_code != 200:
            await asyncio.sleep(0.1)
    return key


async def created(client: httpx.AsyncClient, name: str, units: int | None) -> dict[str, Any]:
    """A new endpoint that answers: with replicas of its own, or on the operator's without `units`."""
    entity = {"entity_name": MODEL, "provisioned_model_units": units}
    served = {key: value for key, value in entity.items() if value is not None}
    body = {"name": name, "config": {"served_entities": [served]}}
    made = await client.post(ENDPOINTS, json=body)
    assert made.status_code == 200, made.text
    async with asyncio.timeout(READY_S):
        while (shown := await read(client, name))["state"] != {
            "ready": "READY",
            "config_update": "NOT_UPDATING",
        }:
            assert shown["state"]["config_update"] != "UPDATE_FAILED", shown
            await asyncio.sleep(0.2)
    return shown


async def read(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await client.get(f"{ENDPOINTS}/{name}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def endless(client: httpx.AsyncClient) -> None:
    """A request of some seconds: the model is tiny, so it is asked for several long answers."""
    await client.post(COMPLETIONS, json=completion(MODEL, max_tokens=1000, n=8))


async def status(client: httpx.AsyncClient, key: str, name: str) -> int:
    answer = await client.post(COMPLETIONS, json=completion(name), headers=bearer(key))
    return answer.status_code


async def streamed_once_up(client: httpx.AsyncClient, name: str) -> Any:
    """The answer of an endpoint whose replicas may still come up: until then it refuses, and is known."""
    async with asyncio.timeout(READY_S):
        while (answer := await client.post(COMPLETIONS, json=completion(name))).status_code != 200:
            assert answer.status_code in (404, 503), answer.text
            await asyncio.sleep(0.2)
    return await streamed(client, completion(name))


async def kill_all(served: Command) -> None:
    """SIGKILL to each process, until none is left."""
    async with asyncio.timeout(WAIT_S):
        while left := await asyncio.to_thread(served.family):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await asyncio.sleep(0.05)


async def until_admitted(folder: Path, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(await asyncio.to_thread(admitted, folder)) < count:
            await asyncio.sleep(0.05)


async def until_whole(folder: Path, answered: set[str]) -> None:
    """Until the ledger has all that was ever admitted. The one that was under way at the kill is lost."""
    database = Database(f"sqlite:///{folder / 'control.db'}")
    async with asyncio.timeout(READY_S):
        while True:
            wanted = await asyncio.to_thread(admitted, folder)
            with contextlib.suppress(Unavailable):
                rows = await read_rows(database)
                ends = {id: row.outcome for id, row in rows.items()}
                if ends.keys() == wanted and all(ends[id] == "finished" for id in answered):
                    break
            await asyncio.sleep(0.2)
    database.close()
    assert list(ends.values()).count("lost") == 1
