"""Stops, kills and deaths of the command that serves: answers finish, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from serve_app.accounts.journal_reader import read
from tests.deploy.command import Command, command, line_of
from tests.deploy.deployment import DEMO, Raw, alone, deploy_file
from tests.deploy.stopping import LONG, STREAMS, check_stop, stream, streams
from tests.support.invariants import WAIT_S

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ENDS: Final = ("ctrl-c", "term", "term-group", "kill", "kill-in-start")


def demo() -> Raw:
    return alone(deploy_file("local"), DEMO)


@pytest.mark.full  # Ctrl-C is in test_serve_command.py
async def test_a_stop_lets_running_answers_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    """SIGTERM to the whole group of the launcher, under a load of sixteen streams."""
    with command(demo(), tmp_path) as served:
        await served.until_ready()
        ended = await check_stop(served, lambda: served.signal_group(signal.SIGTERM))
        assert [record.outcome for record in read(served.usage)] == ["finished"] * ended


async def ends(served: Command, how: str) -> int | None:
    """End a command as named; its exit status, or None where it is killed."""
    if how == "ctrl-c":
        served.ctrl_c()
    elif how == "term":
        served.process.terminate()
    elif how == "term-group":
        served.signal_group(signal.SIGTERM)
    else:
        served.process.kill()
    status = await served.ended()
    return None if how.startswith("kill") else status


async def start_and_end(folder: Path, how: str, delay_s: float) -> None:
    """One start, ended as named: in the middle, after `delay_s`, or once it is ready."""
    with command(demo(), folder) as served:
        if how == "kill-in-start":
            await served.until_said("starting Ray")
            await asyncio.sleep(delay_s)
        else:
            await served.until_ready()
        ports = served.ports()
        assert await ends(served, how) in (0, None), served.said
        await served.leaves_nothing(ports)


@pytest.mark.full  # one that is ready is killed in test_network.py
async def test_a_launcher_that_is_killed_in_its_start_leaves_nothing(tmp_path: Path) -> None:
    """Once HAProxy runs, which has no tie to those who started it."""
    with command(demo(), tmp_path) as served:
        await served.until_runs("haproxy")
        ports = served.ports()
        served.process.kill()
        await served.ended()
        await served.leaves_nothing(ports)


@pytest.mark.full
@pytest.mark.timeout(2_400)
async def test_twenty_starts_and_ends_in_a_row_leave_nothing(tmp_path: Path) -> None:
    draw = random.Random(2026)
    hows = [*ENDS, *(draw.choice(ENDS) for _ in range(15))]
    draw.shuffle(hows)
    for index, how in enumerate(hows):
        await start_and_end(tmp_path / str(index), how, draw.uniform(0, 12))


@pytest.mark.full
async def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with command(demo(), tmp_path) as served:
        await served.until_ready()
        ports = served.ports()
        async with httpx.AsyncClient(base_url=served.url, timeout=600) as client:
            begun = asyncio.Event()
            running = asyncio.create_task(stream(client, begun, n=128, seed=1))
            await asyncio.wait_for(begun.wait(), WAIT_S)
            served.ctrl_c()
            await served.until_said("finishing 1 answer; Ctrl-C again stops at once", WAIT_S)
            await asyncio.sleep(0.5)
            assert not running.done()
            served.ctrl_c()
            assert await served.ended() == 0
            with pytest.raises((httpx.HTTPError, AssertionError)):
                await running
        await served.leaves_nothing(ports)
        assert [record.outcome for record in read(served.usage)] == ["lost"]


@pytest.mark.full
async def test_a_grace_bounds_the_wait(tmp_path: Path) -> None:
    with command(demo(), tmp_path, "--grace", "0.5") as served:
        await served.until_ready()
        ports = served.ports()
        async with httpx.AsyncClient(base_url=served.url, timeout=600) as client:
            begun = asyncio.Event()
            running = asyncio.create_task(stream(client, begun, n=128, seed=1))
            await asyncio.wait_for(begun.wait(), WAIT_S)
            served.process.terminate()
            assert await served.ended() == 0
            with pytest.raises((httpx.HTTPError, AssertionError)):
                await running
        assert "1 answer cut: not done within the grace of 0.5 s" in served.said
        await served.leaves_nothing(ports)


@pytest.mark.full
@pytest.mark.parametrize(
    ("part", "sentence"),
    [("gcs/gcs_server", "Ray's control store (gcs_server) died"), ("raylet/raylet", "died")],
)
async def test_a_server_whose_ray_dies_ends_with_a_sentence(part: str, sentence: str, tmp_path: Path) -> None:
    with command(demo(), tmp_path) as served:
        await served.until_ready()
        ports = served.ports()
        served.named(part).kill()
        assert await served.ended() == 1
        assert sentence in served.said
        assert "Traceback" not in served.said
        await served.leaves_nothing(ports)


@pytest.mark.full
async def test_a_server_recovers_from_the_death_of_its_controller(tmp_path: Path) -> None:
    with command(demo(), tmp_path) as served:
        await served.until_ready()
        ports = served.ports()
        first = served.named("ray::ServeController")
        first.kill()
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as client:
            async with asyncio.timeout(WAIT_S):
                while not any("ray::ServeController" in line_of(each) for each in served.family()):
                    await asyncio.sleep(0.2)
            running = await streams(client, stream)
            served.ctrl_c()
            assert await asyncio.gather(*running) == [LONG] * STREAMS
        assert await served.ended() == 0
        await served.leaves_nothing(ports)


@pytest.mark.full  # tests/unit/deployments/launcher has the sentences
async def test_a_start_that_ray_fails_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with command(demo(), tmp_path, RAY_TMPDIR=str(tmp_path / "file")) as served:
        assert await served.ended() == 1
        assert f"Ray cannot use {tmp_path}/file/ray (Not a directory)" in served.said
        assert "RAY_TMPDIR" in served.said
        assert "Traceback" not in served.said
        await served.leaves_nothing({})


@pytest.mark.full
async def test_a_start_that_ray_does_not_end_is_a_sentence(tmp_path: Path) -> None:
    with command(demo(), tmp_path) as served:
        first = await served.until_runs("raylet")
        first.suspend()
        await served.until_said("it is started once more")
        assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
        (await served.until_runs("raylet")).suspend()
        await served.until_said("Ray did not start in time")
        assert await served.ended() == 1
        assert "Traceback" not in served.said
        await served.leaves_nothing({})


@pytest.mark.full
@pytest.mark.parametrize("part", ["guardian", "server"])
async def test_the_death_of_a_process_in_between_ends_all_of_it(part: str, tmp_path: Path) -> None:
    with command(demo(), tmp_path) as served:
        await served.until_ready()
        ports = served.ports()
        (guardian,) = psutil.Process(served.process.pid).children()
        (server,) = guardian.children()
        (guardian if part == "guardian" else server).kill()
        assert await served.ended() == 1
        assert "killed by signal 9" in served.said
        await served.leaves_nothing(ports)
