"""Threads that tokenise: long jobs in nobody's way, bounded queues, jobs taken back, memory given back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import serve_app.models.demo as demo
from serve_app.errors import Overloaded
from serve_app.text.tokens.workers import INLINE_CHARS, LONG_CHARS, Lane, Workers

WAIT_S = 60.0


async def test_a_long_job_holds_up_neither_the_loop_nor_a_shorter_one() -> None:
    workers, gate = Workers(), threading.Event()
    running = [asyncio.ensure_future(workers.run(LONG_CHARS + 1, gate.wait)) for _ in range(3)]
    try:
        async with asyncio.timeout(WAIT_S):
            assert await workers.run(LONG_CHARS, lambda: "short") == "short"
            assert await workers.run(INLINE_CHARS, threading.get_ident) == threading.get_ident()
    finally:
        gate.set()
    assert await asyncio.gather(*running) == [True] * 3


async def test_what_waits_is_bounded_and_its_room_comes_back() -> None:
    lane, gate = Lane("test", 1, most_chars=100), threading.Event()
    first = asyncio.ensure_future(lane.run(60, gate.wait))
    second = asyncio.ensure_future(lane.run(40, gate.wait))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many long texts"):
        await lane.run(1, gate.wait)
    gate.set()
    await asyncio.gather(first, second)
    assert await lane.run(100, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await lane.run(100, lambda: 1 // 0)
    assert lane._held == 0


async def test_a_job_whose_caller_left_is_never_begun() -> None:
    lane, gate, begun = Lane("test", 1), threading.Event(), threading.Event()
    first = asyncio.ensure_future(lane.run(10, gate.wait))
    left = asyncio.ensure_future(lane.run(10, begun.set))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert lane._held == 10
    gate.set()
    assert await first is True
    assert await lane.run(10, lambda: begun.is_set()) is False


# Prints by how many bytes one large job has grown a process in which nothing else runs.
LARGE_JOB = """
import asyncio, pathlib, sys
from serve_app.text.tokens.tokenizer import Tokenizer

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

async def grown():
    tokenizer = Tokenizer.load(pathlib.Path(sys.argv[1]))
    await tokenizer.encode("warm up " * 1_000)
    before = resident()
    assert len(await tokenizer.encode(" " * 2**19)) == 2**19  # 115 MB while it is made
    return resident() - before

print(asyncio.run(grown()))
"""


def test_the_memory_of_large_jobs_is_given_back() -> None:
    command = [sys.executable, "-c", LARGE_JOB, str(Path(demo.__file__).parent / "demo-chat")]
    grown = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 2, check=True).stdout
    assert int(grown) < 48 * 2**20
