"""What a streamed token costs each process of a server, in CPU time: two trees in turns.

    git worktree add build/before COMMIT
    python benchmarks/make_model.py smol135 build/models
    python benchmarks/stream_cpu.py build/before . build/models/smol135 --mix c1 --mix c16 --turns 5

As in `two_trees.py`, the other side is stopped during a turn. A row is CPU milliseconds for 1,000 tokens of
one process and of its threads of one name: `kernels` compute, `ray::IDLE` are those that Python made, among
them the event loop and, in a replica, the engine, which computes as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import psutil
from deployment import NAME, model_config
from load import MIXES, Mix, Prompts, drive
from two_trees import PORTS, Side
from whole_stack import CATCH_UP_S, TURN_REQUESTS, serving, signal_all

TICKS: Final = os.sysconf("SC_CLK_TCK")
CLIENT: Final = "client"
SHOWN_FROM: Final = 10.0  # milliseconds for 1,000 tokens, below which a row is left out

Times = dict[str, float]  # a row's name -> CPU seconds


def _process_name(process: psutil.Process) -> str:
    """What the process is: Ray writes a deployment's name into its title."""
    title = " ".join(process.cmdline()[:1]) or process.name()
    if not title.startswith("ray::"):
        return process.name()
    return title.removeprefix("ray::").split(":")[-1].split(".")[0]


def _threads(pid: int) -> Times:
    """CPU seconds of each thread; threads of one name make one row, but the main thread has its own."""
    found: Times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (task / "stat").read_text()
            run_ns = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        name = "main" if int(task.name) == pid else name
        found[name] = found.get(name, 0.0) + run_ns / 1e9
    return found


def cpu_times(root: int) -> Times:
    """CPU seconds so far, by row: of the processes below `root`, and of this one."""
    own = os.times()
    found: Times = {CLIENT: own.user + own.system}
    for process in psutil.Process(root).children(recursive=True):
        try:
            name = _process_name(process)
            for thread, seconds in _threads(process.pid).items():
                row = f"{name}: {thread}"
                found[row] = found.get(row, 0.0) + seconds
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    return found


async def turn(side: Side, other: Side, prompts: list[list[int]], mix: Mix) -> tuple[Times, float]:
    """CPU milliseconds for 1,000 tokens by row, and the tokens a second."""
    signal_all(other.process.pid, signal.SIGSTOP)
    signal_all(side.process.pid, signal.SIGCONT)
    await asyncio.sleep(CATCH_UP_S)
    before = cpu_times(side.process.pid)
    results, wall = await drive(side.url, NAME, iter(prompts), mix, len(prompts))
    after = cpu_times(side.process.pid)
    if errors := [seen.error for seen in results if seen.error]:
        raise RuntimeError(errors[0])
    tokens = sum(seen.output_tokens for seen in results)
    return {row: (after[row] - before.get(row, 0.0)) * 1e6 / tokens for row in after}, tokens / wall


async def measure(sides: dict[str, Side], args: argparse.Namespace, name: str) -> list[str]:
    """The table of one mix."""
    mix = MIXES[name]
    count = max(TURN_REQUESTS, mix.concurrency)
    source = iter(Prompts(args.model, mix, 0))
    found: dict[str, list[Times]] = {label: [] for label in sides}
    rates: dict[str, list[float]] = {label: [] for label in sides}
    others = {"before": "after", "after": "before"}
    for number, first in enumerate(islice(cycle(others), args.turns + 1)):
        prompts = list(islice(source, count))
        for label in (first, others[first]):
            times, rate = await turn(sides[label], sides[others[label]], prompts, mix)
            if number:  # the first turn warms both sides up
                found[label].append(times)
                rates[label].append(rate)

    def cell(label: str, row: str) -> str:
        values = [times.get(row, 0.0) for times in found[label]]
        return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    lines = [f"\n{name}", "", "| process: thread | before | after |", "|---|---|---|"]
    for row in sorted({row for label in sides for times in found[label] for row in times}):
        if max(statistics.median(t.get(row, 0.0) for t in found[label]) for label in sides) >= SHOWN_FROM:
            lines.append(f"| {row} | {cell('before', row)} | {cell('after', row)} |")
    speeds = [f"{statistics.median(rates[label]):.1f}" for label in sides]
    return [*lines, f"| tok/s | {' | '.join(speeds)} |"]


async def run(args: argparse.Namespace) -> None:
    config = model_config(args.model, args.dtype, args.device)
    with (
        serving(config, port=PORTS[0], tree=args.before) as before,
        serving(config, port=PORTS[1], tree=args.after) as after,
    ):
        print(f"\n{date.today()}, {os.cpu_count()} cores, {args.turns} turns, {time.strftime('%H:%M')}")
        sides = {"before": Side(*before), "after": Side(*after)}
        for name in args.mix or list(MIXES):
            print("\n".join(await measure(sides, args, name)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--mix", action="append", choices=sorted(MIXES), help="default: all")
    parser.add_argument("--turns", type=int, default=5)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
