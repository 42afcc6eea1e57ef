"""Two trees of this project through HTTP, with the same model and the same mixes, in turns of seconds.

    git worktree add build/before COMMIT
    python benchmarks/make_model.py smol135 build/models
    python benchmarks/two_trees.py build/before . build/models/smol135 --mix c1 --mix c16 --turns 9

Both servers are up all the time; one is stopped (SIGSTOP) while the other answers. The sides of a
turn have the same prompts, and turns alternate in who is first, so that a slow minute of the machine
hits both. A ratio is the median over the turns, after / before; the interval is the 2nd lowest and
the 2nd highest of 9 or more.
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
from typing import NamedTuple

from deployment import NAME, model_config
from load import MIXES, Mix, Prompts, drive, summary
from whole_stack import CATCH_UP_S, TURN_REQUESTS, serving, signal_all

PORTS = (18441, 18451)


class Side(NamedTuple):
    """A server of one tree."""

    url: str
    process: subprocess.Popen[bytes]


async def turn(side: Side, other: Side, prompts: list[list[int]], mix: Mix) -> dict[str, object]:
    """One row of `load.summary`, while the other side stands still."""
    signal_all(other.process.pid, signal.SIGSTOP)
    signal_all(side.process.pid, signal.SIGCONT)
    await asyncio.sleep(CATCH_UP_S)
    results, wall = await drive(side.url, NAME, iter(prompts), mix, len(prompts))
    return summary("", "", mix, results, wall)


async def measure(before: Side, after: Side, args: argparse.Namespace, name: str) -> str:
    """A line of the table."""
    mix = MIXES[name]
    count = max(TURN_REQUESTS, mix.concurrency)
    source = iter(Prompts(args.model, mix, 0))
    rows: dict[str, list[dict[str, object]]] = {"before": [], "after": []}
    sides = {"before": (before, after), "after": (after, before)}
    for number, first in enumerate(islice(cycle(("before", "after")), args.turns + 1)):
        prompts = list(islice(source, count))
        for label in (first, *(other for other in sides if other != first)):
            row = await turn(*sides[label], prompts, mix)
            if number:  # the first turn warms both sides up
                rows[label].append(row)

    def values(label: str, field: str) -> list[float]:
        return [float(str(row[field])) for row in rows[label]]

    def pair(field: str) -> str:
        return " → ".join(f"{statistics.median(values(label, field)):.1f}" for label in sides)

    rates = zip(values("before", "output_tok_s"), values("after", "output_tok_s"), strict=True)
    ratios = sorted(new / old for old, new in rates)
    errors = sum(int(str(row["errors"])) for label in rows for row in rows[label])
    ratio = f"{statistics.median(ratios):.3f} ({ratios[1]:.3f} to {ratios[-2]:.3f})"
    return (
        f"| {name} | {pair('output_tok_s')} | {ratio} | {pair('ttft_ms_p50')} | {pair('itl_ms_p50')} "
        f"| {errors} |"
    )


async def run(args: argparse.Namespace) -> None:
    config = model_config(args.model, args.dtype, args.device)
    with (
        serving(config, port=PORTS[0], tree=args.before) as before,
        serving(config, port=PORTS[1], tree=args.after) as after,
    ):
        print(f"\n{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {args.turns} turns\n")
        print("| mix | tok/s | ratio | TTFT p50 ms | ITL p50 ms | errors |\n|---|---|---|---|---|---|")
        for name in args.mix or list(MIXES):
            print(await measure(Side(*before), Side(*after), args, name), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--mix", action="append", choices=sorted(MIXES), help="default: all")
    parser.add_argument("--turns", type=int, default=9)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
