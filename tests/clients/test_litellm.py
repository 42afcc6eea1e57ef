"""litellm, unmodified, against the gateway over a real socket.

It wants older versions of packages that the server has, so it lives in an environment of its own:
`make test-all` makes one; LITELLM_PYTHON names the interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

SCRIPT = Path(__file__).with_name("litellm_script.py")
PYTHON = os.environ.get("LITELLM_PYTHON") or (sys.executable if find_spec("litellm") else None)


@pytest.mark.timeout(240)
@pytest.mark.skipif(PYTHON is None, reason="LITELLM_PYTHON names no interpreter that has litellm")
async def test_litellm_chats_streams_calls_tools_and_falls_back() -> None:
    async with demo_server() as url:
        process = await asyncio.create_subprocess_exec(
            str(PYTHON), str(SCRIPT), f"{url}/v1", DEMO, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert "Paris" in told["whole"]
    assert told["streamed"] == told["whole"]
    assert told["usage"] > 0
    assert told["called"] == [["get_weather", {"city": "Paris"}]]
    assert "unny" in told["final"]
    assert "temperature" in told["refused"]
    assert "maximum context length is 512 tokens" in told["overflow"]
    assert told["fallen_back"] == 512 - 8
