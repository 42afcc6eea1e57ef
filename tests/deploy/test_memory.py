"""A program beside the server takes the memory of a container: real limit, real kernel, real server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
import yaml

from tests.deploy.answers import completion
from tests.deploy.deployment import COMPLETIONS, DEMO, START_S, alone, app_of, deploy_file
from tests.support.invariants import WAIT_S
from tests.support.memory_group import Balloon, MemoryGroup, memory_group
from tests.support.ray_cluster import ROOT, free_port

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(500),
]

RECOVERY_S: Final = 120.0
ROOM: Final = 500 * 2**20  # that the container has beyond what the idle server uses
STEP: Final = 8 * 2**20


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as group:
        yield group


@dataclass
class Server:
    """`serve-app serve` in a group."""

    process: subprocess.Popen[bytes]
    url: str
    said: Path
    probes: list[int] = field(default_factory=list)

    def pids(self, title: str) -> set[int]:
        found = set()
        for each in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if title in " ".join(each.cmdline()) and each.status() != psutil.STATUS_ZOMBIE:
                    found.add(each.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    async def probe(self, client: httpx.AsyncClient) -> None:
        """Ask /livez all the time."""
        while True:
            self.probes.append((await client.get("/livez")).status_code)
            await asyncio.sleep(0.05)


@pytest.fixture
def server(group: MemoryGroup, tmp_path: Path) -> Iterator[Server]:
    raw, port = alone(deploy_file("local"), DEMO), free_port()
    raw["http_options"]["port"] = port
    app_of(raw, "system")["args"] = {"usage_dir": str(tmp_path / "usage")}
    file, said = tmp_path / "local.yaml", tmp_path / "said"
    file.write_text(yaml.safe_dump(raw))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # Ray's own monitor would find the machine full as soon as the server has started, were it on.
    full = psutil.virtual_memory().percent / 100 + 0.03
    environ["RAY_memory_usage_threshold"] = f"{min(full, 0.94):.3f}"
    with said.open("w") as out:
        process = subprocess.Popen(
            group.command(sys.executable, "-m", "serve_app.cli", "serve", str(file)),
            env=environ,
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Server(process, f"http://127.0.0.1:{port}", said)
        finally:
            for each in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # one may end with another
                    each.kill()
            process.kill()
            process.wait()


async def until_ready(server: Server) -> None:
    async with asyncio.timeout(START_S):
        while "ready on" not in server.said.read_text():
            assert server.process.poll() is None, server.said.read_text()
            await asyncio.sleep(0.2)


async def test_memory_that_another_program_takes_costs_a_replica_at_the_most(
    server: Server, group: MemoryGroup
) -> None:
    await until_ready(server)
    spared = ("ServeController", ":Gateway", ":Limiter", "raylet/raylet", "gcs_server")
    before = {title: server.pids(title) for title in spared}
    (replica,) = server.pids(f"model-{DEMO}:Model")
    assert all(len(pids) >= 1 for pids in before.values()), before
    group.limit(group.used + ROOM)
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
        probing = asyncio.create_task(server.probe(client))
        assert (await client.post(COMPLETIONS, json=completion(DEMO))).status_code == 200
        balloon = Balloon(group)
        try:
            # First the replica refuses, and lives.
            async with asyncio.timeout(WAIT_S):
                while (refused := await client.post(COMPLETIONS, json=completion(DEMO))).status_code == 200:
                    await asyncio.to_thread(balloon.grow, STEP)
                    await asyncio.sleep(0.3)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "service_unavailable"
            assert "memory" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"]
            assert server.pids(f"model-{DEMO}:Model") == {replica}
            assert group.kills == 0
            # Then there is none left, and the kernel ends it.
            async with asyncio.timeout(WAIT_S):
                while not group.kills:
                    await asyncio.to_thread(balloon.grow, STEP)
            async with asyncio.timeout(WAIT_S):
                while replica in server.pids(f"model-{DEMO}:Model"):
                    await asyncio.sleep(0.05)
            answer = await client.post(COMPLETIONS, json=completion(DEMO))
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "service_unavailable"
            assert balloon.process.poll() is None
        finally:
            balloon.burst()
        async with asyncio.timeout(RECOVERY_S):
            while (await client.post(COMPLETIONS, json=completion(DEMO))).status_code != 200:
                await asyncio.sleep(0.2)
        probing.cancel()
        await asyncio.wait({probing})
    assert {title: server.pids(title) for title in spared} == before
    assert len(server.probes) > 20
    assert set(server.probes) == {200}
