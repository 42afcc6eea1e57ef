"""kill -9 under load: two gateways before two replicas, from deploy/local.yaml with more of each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.deploy import fake_model
from tests.deploy.answers import bare, settled
from tests.deploy.deployment import CHAT, DEMO, Deployed, alone, app_of, deploy_file, deployed, gateway_of
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

STREAMS: Final = 12  # of each kind
LONG: Final = "tokens=400 step=0.02"
LATE: Final = "tokens=5 until="  # and a file: nothing is delivered before it is there


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    raw = alone(deploy_file("local"), DEMO)
    gateway_of(raw)["num_replicas"] = 2
    model = app_of(raw, f"model-{DEMO}")
    model["import_path"] = fake_model.IMPORT_PATH
    model["deployments"][0].update(num_replicas=2, health_check_period_s=1, graceful_shutdown_timeout_s=10)
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, raw, usage) as server:
        await until_complete(server)
        yield server


def replicas(server: Deployed) -> list[psutil.Process]:
    return [process for process in server.processes() if "Gateway" not in process.cmdline()[0]]


async def until_complete(server: Deployed) -> None:
    """Wait for two gateways that are ready, and two replicas that each of them may choose."""
    async with asyncio.timeout(WAIT_S):
        while len(gateways := await server.gateways()) < 2 or len(replicas(server)) < 2:
            await asyncio.sleep(0.1)
        await server.until_balanced()
        for url in gateways.values():
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
                seen: set[str] = set()
                while len(seen) < 2:
                    answers = await asyncio.gather(
                        *(client.post(CHAT, json=body("tokens=1 step=0.1")) for _ in range(4))
                    )
                    seen |= {
                        a.json()["choices"][0]["message"]["content"] for a in answers if a.status_code == 200
                    }


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": DEMO, "messages": [{"role": "user", "content": prompt}], **fields}


@dataclass
class Stream:
    """What a client saw of one stream."""

    id: str = ""
    text: str = ""
    finish: str | None = None
    errors: list[Any] = field(default_factory=list)
    done: bool = False  # the terminator came
    status: int = 0
    cut: bool = False  # the connection broke before the answer was over

    @property
    def pids(self) -> list[int]:
        """The replicas that answered, each once, in the order of their first tokens."""
        return list(dict.fromkeys(map(int, self.text.split())))

    @property
    def tokens(self) -> int:
        return len(self.text.split())

    @property
    def is_clean(self) -> bool:
        return self.done and self.finish == "length" and not self.errors and not self.cut


async def follow(server: Deployed, prompt: str, stream: Stream) -> None:
    try:
        async with server.client.stream("POST", CHAT, json=body(prompt, stream=True)) as response:
            stream.status = response.status_code
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    _note(stream, line.removeprefix("data: "))
    except httpx.HTTPError:
        stream.cut = True


def _note(stream: Stream, data: str) -> None:
    if data == "[DONE]":
        stream.done = True
        return
    event = json.loads(data)
    if "error" in event:
        stream.errors.append(event["error"])
        return
    stream.id = bare(event["id"])
    for choice in event["choices"]:
        stream.text += choice["delta"].get("content") or ""
        stream.finish = choice["finish_reason"] or stream.finish


@dataclass
class Load:
    """Streams that deliver, and streams that will."""

    long: list[Stream]
    late: list[Stream]
    tasks: list[asyncio.Task[None]]


async def under_way(server: Deployed, begins: Path) -> Load:
    """All streams of a load, in the replicas; the long ones have delivered and the late ones have not."""
    long, late = ([Stream() for _ in range(STREAMS)] for _ in range(2))
    tasks = [asyncio.create_task(follow(server, LONG, stream)) for stream in long]
    async with asyncio.timeout(WAIT_S):
        while not all(stream.text for stream in long):
            await asyncio.sleep(0.02)
        tasks += [asyncio.create_task(follow(server, f"{LATE}{begins}", stream)) for stream in late]
        while (await server.metrics())["serve_app_requests_in_flight"] < 2 * STREAMS:
            await asyncio.sleep(0.02)
        while await server.running() < 2 * STREAMS:
            await asyncio.sleep(0.02)
    return Load(long, late, tasks)


@pytest.mark.full
async def test_a_killed_replica_breaks_no_answer(server: Deployed, tmp_path: Path) -> None:
    """What it had begun goes on in the other replica, and what it had not is asked there."""
    load = await under_way(server, begins := tmp_path / "begins")
    assert all(len(stream.pids) == 1 for stream in load.long)
    (victim, survivor) = dict.fromkeys(stream.pids[0] for stream in load.long)
    begun = [stream for stream in load.long if stream.pids == [victim]]
    os.kill(victim, signal.SIGKILL)
    begins.touch()
    await asyncio.wait_for(asyncio.gather(*load.tasks), WAIT_S)
    assert all(stream.is_clean for stream in load.long + load.late)
    assert all(stream.tokens == 400 for stream in load.long)
    assert all(stream.tokens == 5 for stream in load.late)
    for stream in load.long:
        assert stream.pids[0] == (victim if stream in begun else survivor)
        assert (len(stream.pids) > 1) == (stream in begun)
    assert all(victim not in stream.pids for stream in load.late)
    records = {record.id: record for record in await settled(server)}
    for stream in load.long + load.late:
        assert records[stream.id].outcome == "finished"
        assert records[stream.id].completion_tokens == stream.tokens
    assert all((records[stream.id].migrations > 0) == (stream in begun) for stream in load.long)
    await until_complete(server)


@pytest.mark.full
async def test_a_killed_gateway_loses_its_own_requests_and_the_replicas_settle_them(
    server: Deployed, tmp_path: Path
) -> None:
    before = len(await settled(server))
    load = await under_way(server, begins := tmp_path / "begins")
    victim = next(iter(await server.gateways()))
    (journal,) = [Path(f.path) for f in psutil.Process(victim).open_files() if f.path.endswith(".jsonl")]
    os.kill(victim, signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*load.tasks[:STREAMS]), WAIT_S)
    begins.touch()  # by now replicas have let go what the killed gateway had asked
    await asyncio.wait_for(asyncio.gather(*load.tasks), WAIT_S)
    lost = {e["id"] for e in map(json.loads, journal.open()) if e["event"] == "open"}
    lost -= {e["id"] for e in map(json.loads, journal.open()) if e["event"] == "close"}
    assert 0 < len(lost) < 2 * STREAMS
    for stream in load.long:
        assert stream.is_clean == (stream.id not in lost)
        assert stream.tokens == 400 or not stream.done
    assert len(lost) > sum(stream.cut for stream in load.long)  # late ones too
    for stream in load.late:  # nothing had come of them, so HAProxy asked the other gateway
        assert stream.is_clean
        assert stream.id not in lost
    await until_complete(server)
    records = await settled(server)  # the replicas are idle: what nobody reads is not generated
    used = {record.id: record.completion_tokens for record in records}
    async with asyncio.timeout(WAIT_S):
        while not all(used[stream.id] for stream in load.long):
            await asyncio.sleep(0.1)
            used = {record.id: record.completion_tokens for record in server.records()}
    assert all(used[stream.id] >= stream.tokens for stream in load.long)
    assert not any(used[id] for id in lost - {stream.id for stream in load.long})
    outcomes = {record.id: record.outcome for record in records}
    assert {id for id, outcome in outcomes.items() if outcome == "lost"} == lost
    assert all(outcomes[stream.id] == "finished" for stream in load.long + load.late if stream.is_clean)
    assert len(records) >= before + 2 * STREAMS
