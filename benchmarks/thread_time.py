"""CPU time of every process and thread of a server, by the scheduler's clock, while a mix runs through HTTP.

    python benchmarks/make_model.py qwen06 build/models
    python benchmarks/thread_time.py build/models/qwen06 --mix c16

Shows what a step loses to the rest of the server: kernels need all cores at once, so whatever else runs
holds them up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

from deployment import NAME, model_config
from load import MIXES, Prompts, drive
from whole_stack import serving

LEAST_MS = 1.0  # a second, of a thread that is listed
WAVES = 3  # of requests; the first one is not counted


class Clock(NamedTuple):
    """What one thread has had so far."""

    run_ns: int
    wait_ns: int  # for a core
    turns: int  # on a core


class Thread(NamedTuple):
    """One thread, and what it is called now; Ray calls its own after what they do."""

    pid: int
    process: str
    name: str
    clock: Clock


def threads() -> dict[int, Thread]:
    """All threads of this machine, by their ids."""
    found: dict[int, Thread] = {}
    for folder in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            run, wait, turns = map(int, (folder / "schedstat").read_text().split())
            pid = int(folder.parts[2])
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
            name = (folder / "comm").read_text().strip()
            found[int(folder.name)] = Thread(pid, command[:60] or name, name, Clock(run, wait, turns))
    return found


def passed(before: Mapping[int, Thread], after: Mapping[int, Thread]) -> list[Thread]:
    """The threads of `after`, with what each had meanwhile."""
    meanwhile = []
    for tid, thread in after.items():
        earlier = before[tid].clock if tid in before else Clock(0, 0, 0)
        had = Clock(*(b - a for a, b in zip(earlier, thread.clock, strict=True)))
        meanwhile.append(thread._replace(clock=had))
    return meanwhile


def table(spent: Iterable[Thread], seconds: float, most: int) -> Iterable[str]:
    """Lines: processes with most time first, and below each its threads. Milliseconds of a second."""
    of_process: dict[int, list[Thread]] = defaultdict(list)
    for thread in spent:
        of_process[thread.pid].append(thread)

    def row(what: str, listed: Iterable[Thread]) -> str:
        run, wait, turns = (sum(column) for column in zip(*(each.clock for each in listed), strict=True))
        return f"| {what} | {run / seconds / 1e6:.1f} | {wait / seconds / 1e6:.1f} | {turns / seconds:.0f} |"

    yield "| process, thread | ran, ms/s | waited for a core, ms/s | turns/s |"
    yield "|---|---|---|---|"
    ranked = sorted(of_process.values(), key=lambda listed: -sum(each.clock.run_ns for each in listed))
    for listed in ranked[:most]:
        yield row(listed[0].process, listed)
        for each in sorted(listed, key=lambda one: -one.clock.run_ns):
            if len(listed) > 1 and each.clock.run_ns / seconds / 1e6 >= LEAST_MS:
                yield row(f"· {each.name}", [each])


async def measure(args: argparse.Namespace) -> None:
    mix = MIXES[args.mix]
    config = model_config(args.model, args.dtype, args.device)
    with serving(config) as (url, _):
        prompts = iter(Prompts(args.model, mix, 0))
        await drive(url, NAME, prompts, mix, mix.concurrency)
        before, start = threads(), time.perf_counter()
        results, _ = await drive(url, NAME, prompts, mix, mix.concurrency * (WAVES - 1))
        seconds, spent = time.perf_counter() - start, passed(before, threads())
    tokens = sum(len(seen.gaps) + 1 for seen in results)
    print(
        f"\n{date.today()}, {platform.processor() or platform.machine()}, {args.model.name}, {args.mix}: ",
        end="",
    )
    print(f"{tokens / seconds:.1f} tok/s over {seconds:.0f} s\n")
    print("\n".join(table(spent, seconds, args.most)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--mix", choices=sorted(MIXES), default="c16")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--most", type=int, default=14, help="processes that are listed")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
