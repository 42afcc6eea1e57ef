"""deploy/local.yaml: as it is, and its model with a small queue under a burst."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from serve_app.types import EngineStats
from tests.deploy.answers import completion, every_endpoint_answers, settled, whole
from tests.deploy.deployment import COMPLETIONS, DEMO, Deployed, Raw, app_of, deploy_file, deployed, edited
from tests.support.invariants import WAIT_S, footprint, growth, unharmed
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

EMBEDDER: Final = "demo-embed"
RUNNING: Final = 16
WAITING: Final = 32
WINDOW: Final = 512
GROWTH: Final = 200 * 2**20
TOKENS: Final = 300  # of one answer of the burst


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def as_it_is(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("local"), usage) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(as_it_is: Deployed) -> Deployed:
    """With RUNNING + WAITING places in the model, which starts again for it."""

    def edit(raw: Raw) -> None:
        engine = app_of(raw, f"model-{DEMO}")["args"]["engine"]
        engine.update(max_sequences=RUNNING, max_waiting=WAITING, max_model_len=WINDOW)

    await as_it_is.deploy(edited(as_it_is.raw, edit))
    await as_it_is.until_running()
    as_it_is.engine = partial(as_it_is.engine_of, f"model-{DEMO}")  # of the model that was made small
    assert (await as_it_is.engine()).max_sequences == RUNNING
    return as_it_is


@pytest.mark.full  # tests/deploy/test_serve_command.py asks all endpoints of this file, too
async def test_every_endpoint_answers(as_it_is: Deployed) -> None:
    await every_endpoint_answers(as_it_is, {DEMO, f"{DEMO}:pirate", EMBEDDER})
    async with unharmed(as_it_is) as watch:
        await whole(as_it_is.client, completion(DEMO))
        watch.sent += 1


@pytest.mark.full
async def test_a_model_that_is_deployed_anew_is_known_as_it_is_now(small: Deployed) -> None:
    async with unharmed(small) as watch, asyncio.timeout(WAIT_S):
        await whole(small.client, completion(DEMO))
        watch.sent += 1
        while (await small.client.get(f"/v1/models/{DEMO}")).json()["max_model_len"] != WINDOW:
            await asyncio.sleep(0.1)


async def post(port: int, body: dict[str, Any]) -> httpx.Response:
    """One request on a connection of its own, closed afterwards; light enough for thousands at once."""
    payload = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        raw = await reader.read()
    finally:
        writer.close()
    top, _, content = raw.partition(b"\r\n\r\n")
    status, *lines = top.decode("latin-1").split("\r\n")
    headers = [
        tuple(line.split(": ", 1)) for line in lines if not line.lower().startswith("transfer-encoding")
    ]
    return httpx.Response(int(status.split()[1]), headers=headers, content=content)


class Observer:
    """Looks at a server again and again: its health, its engine, the memory of its gateway."""

    def __init__(self, server: Deployed) -> None:
        self._server = server
        (self._gateway,) = [p for p in server.processes() if "Gateway" in p.cmdline()[0]]
        self.before = self._gateway.memory_info().rss
        self.largest = self.before
        self.health: Counter[int] = Counter()
        self.engine: list[EngineStats] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self._server.client.base_url, timeout=WAIT_S) as client:
            while True:
                for path in ("/livez", "/readyz"):
                    self.health[(await client.get(path)).status_code] += 1
                self.engine.append(await self._server.engine())
                self.largest = max(self.largest, self._gateway.memory_info().rss)
                await asyncio.sleep(0.05)


# HAProxy keeps idle connections to the gateway for most of a minute: fewer than 2,000 do not wait for them.
@pytest.mark.full  # tests/faults/test_replica_faults.py has a small queue that is full, for `make test`
@pytest.mark.parametrize(("count", "kept"), [(300, "open files"), (2000, "nothing")])
async def test_f4_a_burst_gets_what_fits_and_a_refusal_for_the_rest(
    small: Deployed, count: int, kept: str
) -> None:
    before = footprint(small.processes())
    admitted = len(await settled(small))
    observer = Observer(small)
    watching = asyncio.create_task(observer.run())
    bodies = [completion(DEMO, max_tokens=TOKENS, stream=bool(number % 2)) for number in range(count)]
    answers = await asyncio.wait_for(asyncio.gather(*(post(small.port, body) for body in bodies)), 2 * WAIT_S)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert set(observer.health) == {200}
    assert observer.largest - observer.before < GROWTH
    assert max(stats.running for stats in observer.engine) <= RUNNING
    assert max(stats.waiting for stats in observer.engine) <= WAITING
    codes = Counter(answer.status_code for answer in answers)
    assert set(codes) == {200, 503}, codes
    assert codes[200] >= RUNNING
    for body, answer in zip(bodies, answers, strict=True):
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "server_is_overloaded"
        elif body["stream"]:
            assert "data: [DONE]" in answer.text
            assert answer.text.count('"finish_reason":"length"') == 1
        else:
            assert answer.json()["usage"]["completion_tokens"] == TOKENS
    records = (await settled(small))[admitted:]
    outcomes = Counter(record.outcome for record in records)
    assert outcomes["finished"] == codes[200]
    assert set(outcomes) <= {"finished", "failed"}
    async with asyncio.timeout(2 * WAIT_S):
        while [each for each in growth(before, footprint(small.processes())) if kept not in each]:
            await asyncio.sleep(0.5)
    async with unharmed(small):
        pass  # it asks afresh


@pytest.mark.full
async def test_a_model_that_is_not_the_configured_one_is_refused_until_it_is(small: Deployed) -> None:
    """Last in this file: what it deploys is wrong."""

    def edit(raw: Raw) -> None:
        app_of(raw, f"model-{DEMO}")["args"]["version"] = 2

    right = small.raw
    await small.deploy(edited(right, edit))
    async with asyncio.timeout(2 * WAIT_S):
        while (await small.client.post(COMPLETIONS, json=completion(DEMO))).status_code == 200:
            await asyncio.sleep(0.1)
        while (answer := await small.client.get("/readyz")).status_code != 503:
            await asyncio.sleep(0.1)
        (reason,) = answer.json()["reasons"]
        assert "it serves demo-chat version 2, not demo-chat" in reason
        await small.deploy(right)
        while (await small.client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
    await whole(small.client, completion(DEMO))
