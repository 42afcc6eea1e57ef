"""Shortage of memory on the machine or in its container: who refuses work, and which process dies first.

Other programs may take the memory that a model needs. First the model's replica refuses new work, and gives
back memory that it does not use. If that is not enough, the kernel kills a process, and that should be a
replica: Serve starts another one, while gateway, limiter and controller go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from serve_app import heap
from serve_app.errors import Unavailable

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
RELIEF: Final = 1.25  # times the reserve must be free before work is taken again
RETRY_AFTER_S: Final = 2.0
# In thousandths of all memory, added to the process's own when the kernel looks for the largest one: a
# replica goes before the rest of the server, and before programs that take less than half.
EXPENDABLE: Final = 500
_WORST: Final = 1000
_NO_LIMIT: Final = 2**60  # v1 writes a huge number for "none", v2 the word max

_OWN_SCORE: Final = Path("/proc/self/oom_score_adj")


def be_expendable(score: Path = _OWN_SCORE) -> None:
    """Make the kernel kill this process and its children before the rest of the server."""
    _add_score(score, EXPENDABLE)


def be_spared(score: Path = _OWN_SCORE) -> None:
    """Keep the kernel from killing this process earlier than other programs.

    Ray marks all its workers as the first to be killed. Needs no privilege that Ray did not need.
    """
    _add_score(score, -_WORST)


def _add_score(path: Path, more: int) -> None:
    try:
        path.write_text(str(max(0, min(_WORST, int(path.read_text()) + more))))
    except (OSError, ValueError) as error:  # not Linux, or not allowed
        logger.info("the kernel's choice of victims stays as it is: %s", error)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes: that of the machine, or of the control group with the smallest free share."""

    free: int  # available to programs; file caches count as free
    total: int

    @property
    def share(self) -> float:
        return self.free / self.total if self.total else 1.0


def memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Memory:
    """The memory available to this process. Reads a few small files."""
    machine = psutil.virtual_memory()
    found = [Memory(int(machine.available), int(machine.total)), *_limited(root, own)]
    return min(found, key=lambda each: each.share)


def _limited(root: Path, own: Path) -> Iterator[Memory]:
    """Each control group, of version 1 or 2, that contains this process and has a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        bases = (root / "memory",) if controllers else (root, root / "unified")
        for base in bases:
            group = PurePosixPath(path)
            # In a container the path may be one of the host's, and `root` the container's own group.
            for each in (group, *group.parents):
                limited = _group(base / str(each).lstrip("/"))
                if limited is not None:
                    yield limited


def _group(folder: Path) -> Memory | None:
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit, usage = (folder / limit_file).read_text().strip(), (folder / usage_file).read_text()
            if limit.isdigit() and 0 < int(limit) < _NO_LIMIT:
                used = int(usage) - _file_cache(folder / "memory.stat")
                return Memory(max(0, int(limit) - used), int(limit))
        except (OSError, ValueError):
            continue
    return None


def _file_cache(stat: Path) -> int:
    """Bytes of a group that the kernel can reclaim when it needs them."""
    values = dict(line.split(" ", 1) for line in stat.read_text().splitlines() if " " in line)
    # Pages that were read twice are active, such as weights after a restart, and are given back as well.
    kinds = ("inactive_file", "active_file")
    return sum(int(values.get(f"total_{kind}", values.get(kind, "0"))) for kind in kinds)


class MemoryGuard:
    """Refuses work while less than `reserve` of all memory is free. Create it on the replica's event loop."""

    def __init__(self, reserve: float, look: Callable[[], Memory] = memory, look_s: float = LOOK_S) -> None:
        """`reserve`: a share of all memory; with 0, nothing is refused."""
        self.is_short = False
        self._reserve = reserve
        self._look = look
        self._look_s = look_s
        self._task = asyncio.create_task(self._watch()) if reserve else None

    def check(self) -> None:
        """Raises Unavailable while memory is short."""
        if self.is_short:
            raise Unavailable("the machine is short of memory; try again", retry_after_s=RETRY_AFTER_S)

    def close(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                await self._once()
            except Exception:
                logger.exception("memory cannot be measured")
            await asyncio.sleep(self._look_s)

    async def _once(self) -> None:
        left = self._look()
        was_short = self.is_short
        self.is_short = left.share < self._reserve * (RELIEF if was_short else 1.0)
        if self.is_short:
            await asyncio.to_thread(heap.trim)
        if self.is_short != was_short:
            words = "work is refused" if self.is_short else "work is taken again"
            logger.warning("%d of %d MiB of memory are free: %s", left.free >> 20, left.total >> 20, words)
