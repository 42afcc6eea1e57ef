"""`make serve`: one command from a deploy file to an answer, and back to nothing on Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import tritonclient.grpc.aio as triton
import yaml

from serve_app.accounts.journal_reader import read
from tests.deploy.answers import completion, streamed, whole
from tests.deploy.deployment import DEMO, app_of, deploy_file
from tests.invariants import WAIT_S
from tests.ray_cluster import ROOT, free_port
from tests.rpc_server import output_ids, tensors

# On the loop of the others: it must go on turning for the handles they have.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

START_S = 180.0


@dataclass
class Command:
    """The command under way, its file and what it says."""

    process: subprocess.Popen[str]
    port: int
    grpc_port: int
    said: Path


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    raw, port, grpc_port = deploy_file("local"), free_port(), free_port()
    raw["http_options"]["port"] = port
    app_of(raw, "system")["args"] |= {"usage_dir": str(tmp_path / "usage"), "grpc_port": grpc_port}
    file, said = tmp_path / "local.yaml", tmp_path / "said"
    file.write_text(yaml.safe_dump(raw))
    # As from a shell: none of what this process set for its own cluster.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve_app.deployments.serve", str(file)],
            env=environ,
            cwd=tmp_path,
            text=True,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Command(process, port, grpc_port, said)
        finally:
            for each in _family(process.pid):
                each.kill()
            process.wait()


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def listening_on(port: int) -> set[str]:
    """The addresses of this machine that answer on `port`."""
    found = psutil.net_connections("tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    return {each.ip.removeprefix("::ffff:") for each in listening if each.port == port}


async def test_one_command_serves_a_deploy_file_and_leaves_nothing_behind(
    command: Command, tmp_path: Path
) -> None:
    async with asyncio.timeout(START_S):
        while "ready on" not in command.said.read_text():
            assert command.process.poll() is None, command.said.read_text()
            await asyncio.sleep(0.2)
    url = f"http://127.0.0.1:{command.port}"
    assert url in command.said.read_text()
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        one = await whole(client, completion(DEMO))
        assert (await streamed(client, completion(DEMO))).text == one.text
    assert f"gRPC: 127.0.0.1:{command.grpc_port}" in command.said.read_text()
    async with triton.InferenceServerClient(f"127.0.0.1:{command.grpc_port}") as tensors_client:
        result = await tensors_client.infer(DEMO, tensors([5, 6, 7], 4))
    assert len(output_ids(result)) == 4
    for kind, port in (("HTTP", command.port), ("gRPC", command.grpc_port)):
        assert listening_on(port) == {"127.0.0.1"}, kind
    family = _family(command.process.pid)
    assert len(family) > 5  # Ray, HAProxy and the replicas
    command.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(command.process.wait, WAIT_S) == 0
    assert "stopped" in command.said.read_text()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=WAIT_S)
    assert not alive
    for port in (command.port, command.grpc_port):
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0
    assert {record.outcome for record in read(tmp_path / "usage")} == {"finished"}
