"""pi's library of models, unmodified, against the gateway over a real socket.

PI_FOLDER names a folder in which `npm install @mariozechner/pi-ai` was run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

SCRIPT = Path(__file__).with_name("pi_script.mjs")
FOLDER = os.environ.get("PI_FOLDER")


@pytest.mark.timeout(240)
@pytest.mark.skipif(
    FOLDER is None or shutil.which("node") is None, reason="PI_FOLDER names no folder with pi"
)
async def test_pi_is_answered_and_knows_a_prompt_that_is_too_long() -> None:
    async with demo_server() as url:
        process = await asyncio.create_subprocess_exec(
            *("node", str(SCRIPT), str(FOLDER), f"{url}/v1", DEMO), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert set(told) == {"openai-completions", "openai-responses", "anthropic-messages"}
    for answer in told.values():  # asked for 32,000 tokens of a window of 512
        assert "Paris" in answer["text"]
        assert answer["stop"] == "stop"
        assert "maximum context length is 512 tokens" in answer["error"]
        assert answer["overflow"]
