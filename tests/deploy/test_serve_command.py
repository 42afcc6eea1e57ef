"""`make serve`: one command from a deploy file to answers, and back to nothing on Ctrl-C."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
import tritonclient.grpc.aio as triton

from serve_app.accounts.journal_reader import read
from serve_app.deployments import lean_ray
from tests.deploy.answers import completion, embedded, streamed, whole
from tests.deploy.command import Command, command
from tests.deploy.deployment import (
    COMPLETIONS,
    DEMO,
    Raw,
    alone,
    deploy_file,
    edited,
    endpoints_of,
)
from tests.deploy.stopping import check_stop
from tests.support.invariants import WAIT_S
from tests.support.rpc_server import output_ids, tensors

EMBEDDER: Final = "demo-embed"

# On the loop of the others: it must go on turning for the handles they have.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


def listening_on(port: int) -> set[str]:
    """The addresses of this machine that answer on `port`."""
    found = psutil.net_connections("tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    return {each.ip.removeprefix("::ffff:") for each in listening if each.port == port}


async def test_one_command_serves_a_deploy_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with command(deploy_file("local"), tmp_path) as served:
        await served.until_ready()
        assert f"ready on {served.url}" in served.said
        assert f"In a browser: {served.url}/console" in served.said
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            assert (await client.get("/console/playground")).status_code == 200
            one = await whole(client, completion(DEMO))
            assert (await streamed(client, completion(DEMO))).text == one.text
            assert await names(client) == {DEMO, EMBEDDER}
            assert (await whole(client, completion(f"{DEMO}:pirate"))).text
            assert await embedded(client, EMBEDDER)
        assert f"gRPC: 127.0.0.1:{served.grpc_port}" in served.said
        async with triton.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as tensors_client:
            result = await tensors_client.infer(DEMO, tensors([5, 6, 7], 4))
        assert len(output_ids(result)) == 4
        for kind, port in (("HTTP", served.port), ("gRPC", served.grpc_port)):
            assert listening_on(port) == {"127.0.0.1"}, kind
        assert len(served.family()) > 5  # Ray, HAProxy and the replicas
        await deploys(served, copy.deepcopy(served.raw))
        await check_stop(served, served.ctrl_c)
        assert {record.outcome for record in read(served.usage)} == {"finished"}


@pytest.mark.full
async def test_a_model_leaves_and_comes_back_by_command(tmp_path: Path) -> None:
    with command(deploy_file("local"), tmp_path) as served:
        await served.until_ready()
        first = copy.deepcopy(served.raw)
        replica = served.named("model-demo-chat:Model").pid
        await deploys(served, alone(first, DEMO))
        status, said = await served.deploy(first)
        assert status == 0, said
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            assert await names(client) == {each["name"] for each in endpoints_of(first)}
        assert served.named("model-demo-chat:Model").pid == replica
        await check_stop(served, served.ctrl_c)


async def names(client: httpx.AsyncClient) -> set[str]:
    """The models that are listed, without adapters."""
    ids = [each["id"] for each in (await client.get("/v1/models")).json()["data"]]
    return {each for each in ids if ":" not in each}


async def deploys(served: Command, other: Raw) -> None:
    """Deploy `other`, with a limit that holds from the next request.

    What is wrong changes nothing, and nothing restarts that did not change.
    """
    first = copy.deepcopy(served.raw)
    gateway, replica = served.named("system:Gateway").pid, served.named("model-demo-chat:Model").pid
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
        limited = copy.deepcopy(other)
        endpoints_of(limited).append(
            {
                "name": "assistant",
                "served_entities": [{"model": DEMO}],
                "kind": "pay_per_token",
                "limits": {"requests_per_minute": 1},
            }
        )
        status, said = await served.deploy(limited)
        assert status == 0, said
        removed = {app["name"] for app in first["applications"]} - {
            app["name"] for app in other["applications"]
        }
        assert all(f"removing {app}" in said for app in removed)
        assert "is served" in said
        during = {each["name"] for each in endpoints_of(limited)}
        assert await names(client) == during
        asked = [await client.post(COMPLETIONS, json=completion("assistant")) for _ in range(2)]
        assert [each.status_code for each in asked] == [200, 429]

        wrong = edited(limited, lambda raw: raw["http_options"].update(keep_alive_timeout_s=7))
        status, said = await served.deploy(wrong)
        assert status == 1, said
        assert "http_options.keep_alive_timeout_s is 7, and the server runs with 90" in said
        assert await names(client) == during
    assert (gateway, replica) == (
        served.named("system:Gateway").pid,
        served.named("model-demo-chat:Model").pid,
    )


@pytest.mark.full
async def test_without_a_compiler_the_terminal_says_so_and_the_server_answers(tmp_path: Path) -> None:
    with command(alone(deploy_file("local"), DEMO), tmp_path, CXX="/no/compiler") as served:
        await served.until_ready()
        said = " ".join(served.said.split())  # the terminal breaks lines where it likes
        assert "no native CPU kernels, plain torch instead (slower, same results)" in said
        assert "/no/compiler" in said
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            assert (await whole(client, completion(DEMO))).text
        served.ctrl_c()
        assert await served.ended() == 0


@pytest.mark.full
async def test_a_server_with_ray_as_it_is_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    raw = alone(deploy_file("local"), DEMO)
    with command(raw, tmp_path, **{lean_ray.SWITCH: "off"}) as served:
        await served.until_ready()
        assert served.named("autoscaler/_private/monitor.py")  # which a lean node does not start
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            one = await whole(client, completion(DEMO))
            assert (await streamed(client, completion(DEMO))).text == one.text
        await check_stop(served, served.ctrl_c)
