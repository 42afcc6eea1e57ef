"""When memory is short, and what is done about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from serve_app.deployments import environment
from serve_app.deployments.memory import Memory, MemoryGuard, memory
from serve_app.errors import Unavailable
from tests.support.waiting import until

WAIT_S = 60.0
MIB = 2**20


def group(folder: Path, files: dict[str, int | str]) -> None:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def test_a_machine_without_groups_has_its_own_memory(tmp_path: Path, own: Path) -> None:
    for written in (None, "0::/\n", "4:memory:/\n0::/\n"):
        if written is not None:
            own.write_text(written)
        assert memory(tmp_path, own).total == psutil.virtual_memory().total


@pytest.mark.parametrize("path", ["/", "/pod/container", "/of/the/host/that/is/not/here"])
def test_the_limit_of_a_container_counts_and_file_caches_are_free(
    tmp_path: Path, own: Path, path: str
) -> None:
    own.write_text(f"0::{path}\n")
    group(
        tmp_path / "root" / (path.strip("/") if "pod" in path else ""),
        {
            "memory.max": 100 * MIB,
            "memory.current": 99 * MIB,
            "memory.stat": f"anon 5\ninactive_file {6 * MIB}\nactive_file {3 * MIB}",
        },
    )
    assert memory(tmp_path / "root", own) == Memory(free=10 * MIB, total=100 * MIB)


def test_the_tightest_of_nested_groups_counts(tmp_path: Path, own: Path) -> None:
    own.write_text("9:name=systemd:/\n4:memory:/outer/inner\n0::/\n")
    numbers: dict[str, int | str] = {
        "memory.limit_in_bytes": 2**62,
        "memory.usage_in_bytes": 3,
        "memory.stat": "inactive_file 7\ntotal_inactive_file 0\ntotal_active_file 0",
    }
    group(tmp_path / "memory", numbers)
    group(tmp_path / "memory" / "outer", {**numbers, "memory.limit_in_bytes": 4})
    group(tmp_path / "memory" / "outer" / "inner", {**numbers, "memory.limit_in_bytes": 300})
    assert memory(tmp_path, own) == Memory(free=1, total=4)


def test_more_used_than_the_limit_leaves_nothing(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/\n")
    group(tmp_path / "root", {"memory.max": 5, "memory.current": 9, "memory.stat": ""})
    assert memory(tmp_path / "root", own).free == 0


async def test_work_is_refused_below_the_reserve_and_taken_again_well_above_it() -> None:
    left = Memory(free=50, total=1000)
    looks = 0

    def look() -> Memory:
        nonlocal looks
        looks += 1
        return left

    async def next_look() -> None:
        seen = looks
        await until(lambda: looks > seen + 1)

    guard = MemoryGuard(0.05, look, look_s=0.001)
    await next_look()
    guard.check()
    left = Memory(free=49, total=1000)
    await until(lambda: guard.is_short)
    with pytest.raises(Unavailable, match="memory") as refused:
        guard.check()
    assert refused.value.retry_after_s
    left = Memory(free=60, total=1000)
    await next_look()
    assert guard.is_short  # or it would take and refuse in turns
    left = Memory(free=63, total=1000)
    await until(lambda: not guard.is_short)
    guard.check()
    guard.close()


async def test_a_look_that_fails_refuses_nothing() -> None:
    looks = 0

    def look() -> Memory:
        nonlocal looks
        looks += 1
        raise OSError

    guard = MemoryGuard(0.05, look, look_s=0.001)
    await until(lambda: looks > 2)
    guard.check()
    guard.close()


async def test_without_a_reserve_nobody_looks() -> None:
    guard = MemoryGuard(0.0, look=lambda: Memory(0, 1))
    guard.check()
    guard.close()


@pytest.mark.parametrize(
    ("start", "call", "end"),
    [(0, "be_expendable", 500), (700, "be_expendable", 1000), (1000, "be_spared", 0), (0, "be_spared", 0)],
)
def test_the_kernel_is_told_who_goes_first(start: int, call: str, end: int) -> None:
    code = f"from serve_app.deployments.memory import {call} as call; call(); import subprocess; "
    code += "subprocess.run(['cat', '/proc/self/oom_score_adj'])"
    before = Path("/proc/self/oom_score_adj")

    def begin() -> None:
        before.write_text(str(start))  # in the child: /proc/self is its own

    told = subprocess.run([sys.executable, "-c", code], preexec_fn=begin, capture_output=True, text=True)
    if start > end and told.stdout.strip() == str(start):
        pytest.skip("this process may not lower a score")
    assert int(told.stdout) == end


def test_ray_leaves_the_choice_to_the_kernel() -> None:
    assert environment.COMMON["RAY_memory_monitor_refresh_ms"] == "0"
    assert environment.COMMON["RAY_worker_oom_score_adjustment"] == "0"
