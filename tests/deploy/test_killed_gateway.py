"""kill -9 of the only gateway while streams run, and a model that goes and comes back under it.

The next gateway writes down what the replica generated.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from serve_app.deployments.proxy.answers import LOST
from serve_app.types import UsageRecord
from tests.deploy import fake_model
from tests.deploy.answers import bare
from tests.deploy.deployment import (
    CHAT,
    COMPLETIONS,
    DEMO,
    START_S,
    Deployed,
    Raw,
    alone,
    app_of,
    deploy_file,
    deployed,
    edited,
    endpoints_of,
)
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

STREAMS: Final = 6
LONG: Final = "tokens=4000 step=0.02"
LATE: Final = "tokens=2 until="  # and a file: nothing is delivered before it is there
LARGE: Final = LONG + " " * 20_000  # HAProxy does not hold it, so it cannot repeat it
PRICE: Final = {"input_per_million": 10, "output_per_million": 100, "currency": "EUR"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    raw = alone(deploy_file("local"), DEMO)
    app_of(raw, f"model-{DEMO}")["import_path"] = fake_model.IMPORT_PATH
    endpoints_of(raw)[0]["price"] = PRICE
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, raw, usage) as server:
        yield server


class Follower:
    """A client of one streamed chat."""

    def __init__(self, server: Deployed, path: str, body: dict[str, Any]) -> None:
        self.id = ""
        self.chunks = 0  # with text
        self.task = asyncio.create_task(self._follow(server, path, body))

    async def _follow(self, server: Deployed, path: str, body: dict[str, Any]) -> None:
        try:
            asked = {"model": DEMO, "stream": True, **body}
            async with server.client.stream("POST", path, json=asked) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    self.id = bare(event.get("id", self.id))
                    self.chunks += sum(
                        bool(choice.get("text") or choice.get("delta", {}).get("content"))
                        for choice in event.get("choices", ())
                    )
        except httpx.HTTPError:
            pass  # cut, as the gateway died


def message(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **fields}


async def generated(server: Deployed) -> int:
    """Tokens, by the replica's own count."""
    return (await server.engine_of(f"model-{DEMO}")).generated_tokens


def told_by_replicas(server: Deployed) -> set[str]:
    """The requests of which the journal has a replica's word."""
    lines = [line for path in server.usage.glob("usage-*.jsonl") for line in path.read_bytes().splitlines()]
    return {json.loads(line)["id"] for line in lines if line.startswith(b'{"event":"settle"')}


async def until_settled(server: Deployed, ids: list[str]) -> dict[str, UsageRecord]:
    """The records, once replicas have told what they generated for each of `ids`."""
    async with asyncio.timeout(START_S):
        while True:
            records = await asyncio.to_thread(server.records)
            found = {record.id: record for record in records}
            assert len(found) == len(records), "a request has two rows"
            if set(ids) <= await asyncio.to_thread(told_by_replicas, server):
                return {record.id: record for record in await asyncio.to_thread(server.records)}
            await asyncio.sleep(0.1)


@pytest.mark.full  # test_ledger_kills.py kills a gateway too
async def test_each_stream_of_a_killed_gateway_has_one_row_with_what_its_replica_generated(
    server: Deployed, tmp_path: Path
) -> None:
    finished = bare((await server.chat(DEMO, **message("tokens=7"))).json()["id"])
    before = await generated(server)
    streams = [Follower(server, CHAT, message(LONG)) for _ in range(STREAMS)]
    streams.append(Follower(server, CHAT, message(LONG, n=2)))
    streams.append(
        Follower(server, COMPLETIONS, {"prompt": [LONG, "tokens=3"], "max_tokens": 4000})
    )  # one part ends early
    whole = asyncio.create_task(server.chat(DEMO, **message(LARGE)))
    async with asyncio.timeout(WAIT_S):
        while not all(stream.chunks > 20 for stream in streams):
            await asyncio.sleep(0.02)
    in_flight = (await server.metrics())["serve_app_requests_in_flight"]
    begins = tmp_path / "begins"
    late = asyncio.create_task(server.chat(DEMO, **message(f"{LATE}{begins}")))
    async with asyncio.timeout(WAIT_S):
        while (await server.metrics())["serve_app_requests_in_flight"] == in_flight:
            await asyncio.sleep(0.02)
    (victim,) = await server.gateways()
    os.kill(victim, signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*(stream.task for stream in streams)), WAIT_S)
    answer = await whole
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["message"] == LOST.message

    found = await until_settled(server, [stream.id for stream in streams])
    async with asyncio.timeout(WAIT_S):  # but for the late one, which was asked again
        while (await server.engine_of(f"model-{DEMO}")).running > 1:
            await asyncio.sleep(0.05)
    begins.touch()
    answer = await late  # the next gateway may take longer to come than HAProxy waits
    assert answer.status_code == 200 or answer.headers["retry-after"] == "2"
    was_late = answer.status_code == 200

    assert list(await server.gateways()) != [victim]
    assert found[finished].outcome == "finished"
    lost = {id: record for id, record in found.items() if record.outcome == "lost"}
    assert len(lost) == STREAMS + 4
    for stream in streams:
        record = lost.pop(stream.id)
        assert record.completion_tokens >= stream.chunks > 20
        assert record.prompt_tokens == (6 if record.route == COMPLETIONS else 3)
        cost = record.prompt_tokens * 10 + record.completion_tokens * 100
        assert record.cost == pytest.approx(cost / 1e6)
        assert record.currency == "EUR"
        assert (record.key_id, record.endpoint, record.entity) == ("anonymous", DEMO, DEMO)
        assert record.total_s > 0
    for unsent in lost.values():  # whole answers, of which their clients got nothing
        assert (unsent.completion_tokens, unsent.status) == (0, 0)
    assert len(lost) == 2

    settled = sum(found[stream.id].completion_tokens for stream in streams)
    of_late = 2 * was_late
    of_whole = await generated(server) - before - settled - of_late  # it ran as long as the first streams
    assert 0 < of_whole <= max(found[stream.id].completion_tokens for stream in streams)


@pytest.mark.full
async def test_a_model_that_was_deleted_and_deployed_again_is_answered_by_the_same_gateway(
    server: Deployed,
) -> None:
    """A gateway's handle outlives the deployment that it was made for."""
    gateways, raw = await server.gateways(), server.raw

    def without_model(raw: Raw) -> None:
        raw["applications"].remove(app_of(raw, f"model-{DEMO}"))

    await server.deploy(edited(raw, without_model))
    await until_status(server, 503)
    await server.deploy(raw)
    await server.until_running()
    await until_status(server, 200)
    assert await server.gateways() == gateways
    assert await generated(server) >= 1  # this process has heard of the new replica too


async def until_status(server: Deployed, status: int) -> None:
    """Wait until a chat is answered so."""
    async with asyncio.timeout(START_S):
        while (await server.chat(DEMO, **message("tokens=1"))).status_code != status:
            await asyncio.sleep(0.1)


@pytest.mark.full
async def test_rows_of_a_killed_gateway_stay_one_each_when_the_replica_dies_too(server: Deployed) -> None:
    streams = [Follower(server, CHAT, message(LONG)) for _ in range(2)]
    async with asyncio.timeout(WAIT_S):
        while not all(stream.chunks > 5 for stream in streams):
            await asyncio.sleep(0.02)
    (victim,) = await server.gateways()
    os.kill(victim, signal.SIGKILL)
    found = await until_settled(server, [stream.id for stream in streams])
    for process in server.processes():
        if "Gateway" not in process.cmdline()[0]:
            process.kill()
    async with asyncio.timeout(WAIT_S):
        while (await server.chat(DEMO, **message("tokens=1"))).status_code != 200:
            await asyncio.sleep(0.1)
    again = await until_settled(server, [stream.id for stream in streams])
    assert {stream.id: again[stream.id] for stream in streams} == {
        stream.id: found[stream.id] for stream in streams
    }
