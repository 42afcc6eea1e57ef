"""Two trees of this project through HTTP, with the same model and the same mixes, in turns of seconds.

    git worktree add build/before COMMIT
    python benchmarks/make_model.py smol135 build/models
    python benchmarks/two_trees.py build/before . build/models/smol135 --mix c16 --mix c32 --turns 9

Both servers are up all the time; one is stopped (SIGSTOP) while the other answers. The sides of a
turn have the same prompts, and turns alternate in who is first, so that a slow minute of the machine
hits both. A ratio is the median over the turns, after / before; the interval is the 2nd lowest and
the 2nd highest of 9 or more.

`--cpu` adds CPU milliseconds for 1,000 tokens, which a busy machine changes less: of each process, and
with `--cpu threads` of its threads of one name. There `kernels` compute, and `ray::IDLE` are those that
Python made: the event loop and, in a replica, the engine, which computes as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import statistics
import subprocess
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from deployment import NAME, model_config
from load import MIXES, Mix, Prompts, drive, summary
from whole_stack import CATCH_UP_S, TURN_REQUESTS, serving, signal_all

PORTS = (18441, 18451)
SIDES: Final = ("before", "after")
CLIENT: Final = "client"
SHOWN_FROM: Final = 2.0  # milliseconds for 1,000 tokens, below which a row is left out

Times = dict[tuple[str, str], float]  # (process, thread) -> CPU seconds, or milliseconds for 1,000 tokens


class Side(NamedTuple):
    """A server of one tree."""

    url: str
    process: subprocess.Popen[bytes]


class Turn(NamedTuple):
    """What one side did in one turn."""

    row: dict[str, object]  # of `load.summary`
    cpu: Times  # milliseconds for 1,000 tokens


def process_name(process: psutil.Process) -> str:
    """What the process is: Ray writes a deployment's name into its title."""
    title = " ".join(process.cmdline()[:1]) or process.name()
    if not title.startswith("ray::"):
        return process.name()
    return title.removeprefix("ray::").split(":")[-1].split(".")[0]


def _threads(pid: int) -> dict[str, float]:
    """CPU seconds of each thread; threads of one name make one row, but the main thread has its own."""
    found: dict[str, float] = {}
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
    """CPU seconds so far: of the processes below `root`, and of this one."""
    own = os.times()
    found: Times = {(CLIENT, "all"): own.user + own.system}
    for process in psutil.Process(root).children(recursive=True):
        try:
            name = process_name(process)
            for thread, seconds in _threads(process.pid).items():
                found[name, thread] = found.get((name, thread), 0.0) + seconds
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    return found


async def turn(side: Side, other: Side, prompts: list[list[int]], mix: Mix) -> Turn:
    """One turn of `side`, while the other one stands still."""
    signal_all(other.process.pid, signal.SIGSTOP)
    signal_all(side.process.pid, signal.SIGCONT)
    await asyncio.sleep(CATCH_UP_S)
    before = cpu_times(side.process.pid)
    results, wall = await drive(side.url, NAME, iter(prompts), mix, len(prompts))
    after = cpu_times(side.process.pid)
    tokens = sum(seen.output_tokens for seen in results)
    cpu = {row: (after[row] - before.get(row, 0.0)) * 1e6 / max(1, tokens) for row in after}
    return Turn(summary("", "", mix, results, wall), cpu)


async def turns(sides: dict[str, Side], args: argparse.Namespace, mix: Mix) -> dict[str, list[Turn]]:
    """All turns of both sides with one mix, less a first one that warms them up."""
    count = max(TURN_REQUESTS, mix.concurrency)
    source = iter(Prompts(args.model, mix, 0))
    found: dict[str, list[Turn]] = {label: [] for label in sides}
    for number, order in enumerate(islice(cycle((SIDES, SIDES[::-1])), args.turns + 1)):
        prompts = list(islice(source, count))
        for label, other in zip(order, order[::-1], strict=True):
            seen = await turn(sides[label], sides[other], prompts, mix)
            if number:
                found[label].append(seen)
    return found


def speed(name: str, found: dict[str, list[Turn]]) -> str:
    """A line of the table of speeds."""

    def values(label: str, field: str) -> list[float]:
        return [float(str(each.row[field])) for each in found[label]]

    def pair(field: str) -> str:
        return " → ".join(f"{statistics.median(values(label, field)):.1f}" for label in SIDES)

    rates = zip(*(values(label, "output_tok_s") for label in SIDES), strict=True)
    ratios = sorted(new / old for old, new in rates)
    errors = sum(int(str(each.row["errors"])) for label in SIDES for each in found[label])
    inner = ratios[1:-1] or ratios
    ratio = f"{statistics.median(ratios):.3f} ({inner[0]:.3f} to {inner[-1]:.3f})"
    return (
        f"| {name} | {pair('output_tok_s')} | {ratio} | {pair('ttft_ms_p50')} | {pair('itl_ms_p50')} "
        f"| {errors} |"
    )


def cpu_table(name: str, found: dict[str, list[Turn]], *, by_thread: bool) -> list[str]:
    """CPU milliseconds for 1,000 tokens, medians (least to most); the last row is all but the client."""

    def rows(times: Times) -> dict[str, float]:
        summed: dict[str, float] = {}
        for (process, thread), value in times.items():
            named = f"{process}: {thread}" if by_thread else process
            summed[named] = summed.get(named, 0.0) + value
        summed["server"] = sum(value for (process, _), value in times.items() if process != CLIENT)
        return summed

    seen = {label: [rows(each.cpu) for each in found[label]] for label in SIDES}

    def median(label: str, row: str) -> float:
        return statistics.median(each.get(row, 0.0) for each in seen[label])

    def cell(label: str, row: str) -> str:
        values = [each.get(row, 0.0) for each in seen[label]]
        return f"{median(label, row):.1f} ({min(values):.1f} to {max(values):.1f})"

    names = {row for label in SIDES for each in seen[label] for row in each} - {"server"}
    shown = [row for row in sorted(names) if max(median(label, row) for label in SIDES) >= SHOWN_FROM]
    lines = [f"\n{name}: CPU ms for 1,000 tokens\n", "| process | before | after |", "|---|---|---|"]
    return [
        *lines,
        *(f"| {row} | {cell('before', row)} | {cell('after', row)} |" for row in [*shown, "server"]),
    ]


async def run(args: argparse.Namespace) -> None:
    config = model_config(args.model, args.dtype, args.device)
    with (
        serving(config, port=PORTS[0], tree=args.before) as before,
        serving(config, port=PORTS[1], tree=args.after) as after,
    ):
        sides = {"before": Side(*before), "after": Side(*after)}
        print(f"\n{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {args.turns} turns\n")
        print("| mix | tok/s | ratio | TTFT p50 ms | ITL p50 ms | errors |\n|---|---|---|---|---|---|")
        tables = []
        for name in args.mix or list(MIXES):
            found = await turns(sides, args, MIXES[name])
            print(speed(name, found), flush=True)
            if args.cpu:
                tables += cpu_table(name, found, by_thread=args.cpu == "threads")
        print("\n".join(tables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--mix", action="append", choices=sorted(MIXES), help="default: all")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--cpu", choices=["processes", "threads"], help="tell the CPU time of each, too")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
