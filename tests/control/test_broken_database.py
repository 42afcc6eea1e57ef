"""A database file that is none, as whoever starts the server sees it (fault F8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from serve_app.config.places import DATABASE_FILE
from tests.control.server import READY_S, small_file
from tests.deploy.command import Command, command
from tests.deploy.deployment import START_S
from tests.deploy.stopping import check_stop

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

REMEDY = "file is not a database; restore a backup, or move the file away"


def said(served: Command) -> str:
    """Without white space: a terminal breaks long lines, also inside of a path."""
    return "".join(served.said.split())


async def until_said(served: Command, words: str, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while "".join(words.split()) not in said(served):
            assert served.process.poll() is None, served.said
            await asyncio.sleep(0.2)


@pytest.mark.full
async def test_the_terminal_names_the_file_and_the_server_goes_on_once_it_is_away(tmp_path: Path) -> None:
    file = tmp_path / "usage" / DATABASE_FILE
    file.parent.mkdir()
    file.write_bytes(b"no database" * 1_000)
    with command(small_file(), tmp_path) as served:
        await until_said(served, f"control plane waits: the database {file}", START_S)
        await until_said(served, "system: running", START_S)
        await until_said(served, "minutes at most", READY_S)
        for words in ("control plane waits: ", "not ready yet: nothing can be changed at run time: "):
            line = f"{words}the database {file} does not answer: {REMEDY}"
            assert said(served).count("".join(line.split())) == 1, line
        assert "Traceback" not in served.said
        async with httpx.AsyncClient(base_url=served.url, timeout=READY_S) as client:
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert any(str(file) in reason and REMEDY in reason for reason in answer.json()["reasons"])
            file.rename(tmp_path / "aside")
            await served.until_ready()
            await until_said(served, "the control plane has its database", READY_S)
            assert (await client.get("/readyz")).json() == {"status": "ready"}
        await check_stop(served, served.ctrl_c)
