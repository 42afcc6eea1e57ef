"""Two servers of one user on one machine: each with its own, or the second refused and the first unharmed."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml

from serve_app.accounts.journal_reader import read
from tests.deploy.answers import completion, streamed, whole
from tests.deploy.command import Command, command
from tests.deploy.deployment import DEMO, Raw, alone, app_of, deploy_file
from tests.deploy.stopping import check_stop
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import free_port

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

STARTS: Final = "starting Ray"  # what a server says before anything of it listens


def file() -> Raw:
    return alone(deploy_file("local"), DEMO)


def beside(first: Command, name: str, **args: object) -> Path:
    """The file of `first` with ports of its own, and with these settings of the gateway."""
    raw = copy.deepcopy(first.raw)
    raw["http_options"]["port"] = free_port()
    app_of(raw, "system")["args"] |= {"grpc_port": free_port(), **args}
    path = first.file.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(raw))
    return path


async def answers(served: Command) -> str:
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
        one = await whole(client, completion(DEMO))
        assert (await streamed(client, completion(DEMO))).text == one.text
        assert (await client.get("/readyz")).json()["status"] == "ready"
    return one.text


async def test_a_second_server_with_what_the_first_one_has_is_refused(tmp_path: Path) -> None:
    with command(file(), tmp_path) as first:
        await first.until_said(STARTS)
        status, said = await first.cli("serve", str(first.file))
        assert status == 1, said
        assert f"127.0.0.1:{first.port} belongs to another server (process {first.process.pid}: " in said
        await first.until_ready()
        family = {each.pid for each in first.family()}
        status, said = await first.cli("serve", str(first.file))
        assert status == 1, said
        assert f"127.0.0.1:{first.port} cannot be used (Address already in use)" in said
        status, said = await first.cli("serve", str(beside(first, "ports")))
        assert status == 1, said
        assert "the control plane's database belongs to another server (process " in said
        assert "XDG_STATE_HOME" in said
        await answers(first)
        assert family <= {each.pid for each in first.family()}
        status, said = await first.deploy(first.raw)  # its note is still its own
        assert status == 0, said
        await check_stop(first, first.ctrl_c)


async def test_two_servers_beside_each_other_know_nothing_of_each_other(tmp_path: Path) -> None:
    with command(file(), tmp_path / "a") as one, command(file(), tmp_path / "b") as two:
        await asyncio.gather(one.until_ready(), two.until_ready())  # they start at the same moment
        assert await answers(one) == await answers(two)
        assert not set(one.ports().values()) & set(two.ports().values())
        async with httpx.AsyncClient(base_url=two.url, timeout=WAIT_S) as client:
            sent = asyncio.create_task(whole(client, completion(DEMO)))
            await check_stop(one, one.ctrl_c)
            await sent
        await answers(two)
        two.ctrl_c()
        assert await two.ended() == 0
        ids = [{record.id for record in read(each.usage)} for each in (one, two)]
        assert all(ids)
        assert not ids[0] & ids[1]
        assert {record.outcome for each in (one, two) for record in read(each.usage)} == {"finished"}


async def test_a_server_that_is_killed_leaves_the_one_beside_it_alone(tmp_path: Path) -> None:
    with command(file(), tmp_path / "a") as one, command(file(), tmp_path / "b") as two:
        await asyncio.gather(one.until_ready(), two.until_ready())
        ports = one.ports()
        one.process.kill()
        await one.leaves_nothing(ports)
        await answers(two)
        status, said = await two.deploy(two.raw)
        assert status == 0, said
        with command(one.raw, tmp_path / "a") as again:  # its port, its folder: free at once
            await again.until_ready()
            await answers(again)
            await answers(two)
