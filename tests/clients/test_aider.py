"""aider, unmodified, against the gateway over a real socket.

AIDER_PYTHON names the interpreter of an environment in which `pip install aider-chat` was run.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

PYTHON = os.environ.get("AIDER_PYTHON")
OPTIONS = (
    *("--no-git", "--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-pretty"),
    *("--yes-always", "--no-auto-lint", "--map-tokens", "0", "--edit-format", "ask"),
)


@pytest.mark.timeout(240)
@pytest.mark.skipif(PYTHON is None, reason="AIDER_PYTHON names no interpreter that has aider")
async def test_aider_says_that_a_prompt_is_too_long_and_how_to_shorten_it(tmp_path: Path) -> None:
    async with demo_server() as url:
        process = await asyncio.create_subprocess_exec(
            *(str(PYTHON), "-m", "aider", "--model", f"openai/{DEMO}", *OPTIONS),
            *("--openai-api-base", f"{url}/v1", "--openai-api-key", "unused"),
            *("--message", "What is the capital of France? " * 100),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        out, _ = await process.communicate()
    text = out.decode()
    assert "has hit a token limit" in text
    assert "Retrying" not in text
