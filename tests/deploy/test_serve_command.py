"""`make serve`: one command from a deploy file to an answer, and back to nothing on Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest
import tritonclient.grpc.aio as triton

from serve_app.accounts.journal import read
from tests.deploy.answers import completion, streamed, whole
from tests.deploy.command import command
from tests.deploy.deployment import DEMO, deploy_file
from tests.invariants import WAIT_S
from tests.rpc_server import output_ids, tensors

# On the loop of the others: it must go on turning for the handles they have.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


def listening_on(port: int) -> set[str]:
    """The addresses of this machine that answer on `port`."""
    found = psutil.net_connections("tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    return {each.ip.removeprefix("::ffff:") for each in listening if each.port == port}


async def test_one_command_serves_a_deploy_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with command(deploy_file("local"), tmp_path) as served:
        await served.until_ready()
        assert f"ready on {served.url}" in served.said
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            one = await whole(client, completion(DEMO))
            assert (await streamed(client, completion(DEMO))).text == one.text
        assert f"gRPC: 127.0.0.1:{served.grpc_port}" in served.said
        async with triton.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as tensors_client:
            result = await tensors_client.infer(DEMO, tensors([5, 6, 7], 4))
        assert len(output_ids(result)) == 4
        for kind, port in (("HTTP", served.port), ("gRPC", served.grpc_port)):
            assert listening_on(port) == {"127.0.0.1"}, kind
        assert len(served.family()) > 5  # Ray, HAProxy and the replicas
        ports = served.ports()
        served.ctrl_c()
        assert await served.ended() == 0
        assert served.said.rstrip().endswith("serve: stopped")
        await served.leaves_nothing(ports)
        assert {record.outcome for record in read(served.usage)} == {"finished"}
