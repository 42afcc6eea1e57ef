"""A control group with a limit on memory, of version 1 or 2; made by root, and gone after the test."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path("/sys/fs/cgroup")

BALLOON = """
import mmap, sys
held = []
for line in sys.stdin:
    size = int(line)
    held.append(mmap.mmap(-1, size))
    for at in range(0, size, 4096):
        held[-1][at] = 1
    print("held", flush=True)
"""


class MemoryGroup:
    """Processes that share a limit."""

    def __init__(self, folder: Path, *, is_v2: bool) -> None:
        self._folder = folder
        self._is_v2 = is_v2

    def command(self, *words: str) -> list[str]:
        """`words`, to be run as a process of this group from its first instruction."""
        return ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self._folder / "cgroup.procs"), *words]

    @property
    def used(self) -> int:
        """Bytes, without file caches."""
        usage = int(
            (self._folder / ("memory.current" if self._is_v2 else "memory.usage_in_bytes")).read_text()
        )
        key = "inactive_file" if self._is_v2 else "total_inactive_file"
        return usage - self._counter("memory.stat", key)

    @property
    def kills(self) -> int:
        """Processes of the group that the kernel ended for lack of memory."""
        return self._counter("memory.events" if self._is_v2 else "memory.oom_control", "oom_kill")

    def limit(self, size: int) -> None:
        name = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
        (self._folder / name).write_text(str(size))

    def _counter(self, file: str, name: str) -> int:
        lines = dict(line.split() for line in (self._folder / file).read_text().splitlines())
        return int(lines[name])


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A new group without a limit. Skips where none can be made."""
    is_v2 = "memory" in _read(ROOT / "cgroup.controllers").split()
    folder = (ROOT if is_v2 else ROOT / "memory") / f"serve-app-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        group = MemoryGroup(folder, is_v2=is_v2)
        _ = (group.used, group.kills)
    except (OSError, KeyError) as error:
        pytest.skip(f"no control group for memory can be made here; run as root: {error}")
    try:
        yield group
    finally:
        for pid in _read(folder / "cgroup.procs").split():
            if int(pid) in psutil.pids():
                os.kill(int(pid), 9)
        for pid in _read(folder / "cgroup.procs").split():
            psutil.wait_procs([psutil.Process(int(pid))] if psutil.pid_exists(int(pid)) else [], timeout=10)
        folder.rmdir()


class Balloon:
    """A program that takes memory of a group when told, and keeps it."""

    def __init__(self, group: MemoryGroup) -> None:
        self.process = subprocess.Popen(
            group.command(sys.executable, "-c", BALLOON),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def grow(self, size: int) -> None:
        """Take so many bytes more; returns when they are taken."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "held\n", "the balloon was ended"

    def burst(self) -> None:
        """Give all back."""
        self.process.kill()
        self.process.wait()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
