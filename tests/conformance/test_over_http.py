"""The suites ask a running server, as `--base-url` has them do: a real socket, another process."""

from __future__ import annotations

import asyncio
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.openai_embeddings.test_openai_embeddings import NO_EMBEDDER
from tests.conformance.target import DEMO, HERE, OWN_SERVER, SCRIPTED, demo_app
from tests.support.gateway import served

ROOT: Final = HERE.parents[1]
LIMIT_S: Final = 240.0

SUITES: Final = {path.parent.name for path in HERE.glob("*/test_*.py")}
OF_EMBEDDINGS: Final = {"openai_embeddings"}
EMBEDDER: Final = "demo-embed"

# Without `full`: a module of streams, and one of answers of the real model.
SOME: Final = (
    "ovms/test_streams.py",
    "mindie_chat/test_real_model.py",
)


async def ask(base_url: str, report: Path, *paths: str, model: str = DEMO) -> tuple[int, str]:
    """Exit status and output of the suites at `paths` asking for `model` of the server at `base_url`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--base-url", base_url,
        "--model", model, "--api-key", "unused", f"--junitxml={report}",
        *(str(HERE / path) for path in paths),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output.decode()


def outcomes(report: Path) -> tuple[Counter[str], set[str]]:
    """How many tests of each folder passed, and why others were skipped."""
    passed: Counter[str] = Counter()
    reasons: set[str] = set()
    for case in ET.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            passed[case.attrib["classname"].split(".")[2]] += 1
        else:
            reasons.add(skipped.attrib["message"])
    return passed, reasons


@pytest.mark.full
async def test_some_suites_ask_a_running_server(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    async with demo_app() as app, served(app) as (host, port):
        status, output = await ask(f"http://{host}:{port}", report, *SOME)
    assert status == 0, output[-3000:]
    passed, reasons = outcomes(report)
    assert set(passed) == {path.partition("/")[0] for path in SOME}
    assert reasons <= {SCRIPTED, OWN_SERVER}
    assert SCRIPTED in reasons


@pytest.mark.full
async def test_every_suite_asks_a_running_server(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    async with demo_app() as app, served(app) as (host, port):
        status, output = await ask(f"http://{host}:{port}", report, "")
    assert status == 0, output[-3000:]
    passed, reasons = outcomes(report)
    assert set(passed) == SUITES - OF_EMBEDDINGS
    assert reasons <= {SCRIPTED, OWN_SERVER, NO_EMBEDDER}


@pytest.mark.full
async def test_suites_of_embeddings_ask_a_running_server(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    endpoints = [{"name": EMBEDDER, "task": "llm/v1/embeddings"}]
    async with demo_app(endpoints, EMBEDDER, None) as app, served(app) as (host, port):
        status, output = await ask(f"http://{host}:{port}", report, *OF_EMBEDDINGS, model=EMBEDDER)
    assert status == 0, output[-3000:]
    passed, reasons = outcomes(report)
    assert set(passed) == OF_EMBEDDINGS
    assert reasons == {OWN_SERVER}


@pytest.mark.full
async def test_a_server_that_is_not_there_is_no_success(tmp_path: Path) -> None:
    status, output = await ask("http://127.0.0.1:9", tmp_path / "report.xml", SOME[1])
    assert status != 0
    assert "ConnectError" in output
