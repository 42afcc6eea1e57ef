"""Half an hour of everything at once: mixed protocols, aborts and bad bodies, then what must still be true.

    python benchmarks/soak.py --minutes 30 --streams 16 [--out benchmarks/results/soak.md]

Starts `deploy/local.yaml` on ports of its own, asks it from `--streams` clients that each draw
their next action at random, and ends it with SIGTERM. Exits with 1 unless, at the end,

* a fresh request is answered, and nothing runs: no sequence, no request in flight, no used block;
* each process has the memory that it had after the warm-up (the median of a minute), within 10 %,
  and about as many threads and open files;
* each answer's id has exactly one usage record, and no id has two;
* greedy answers were the same every time, whatever ran beside them;
* no request was answered with a 500, and nothing of the server is left once it has stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import httpx
import psutil
import yaml
from soak_clients import MODEL, QUESTIONS, Client, Log

ROOT: Final = Path(__file__).resolve().parents[1]
PORT: Final = 18731
GRPC_PORT: Final = 18732
GROWTH: Final = 0.10
SLACK_BYTES: Final = 8 * 2**20  # of a small process; an allocator's arena is no leak
SAMPLE_S: Final = 5.0


@dataclass
class Sample:
    """One look at a process."""

    at: float
    rss: int
    threads: int
    files: int


class Watch:
    """Looks at every process of a tree, by pid and name."""

    def __init__(self, root: psutil.Process) -> None:
        self.root = root
        self.seen: dict[tuple[int, str], list[Sample]] = defaultdict(list)

    def look(self) -> None:
        for process in [self.root, *self.root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, FileNotFoundError):
                name = " ".join(Path(word).name for word in process.cmdline()[:3]) or process.name()
                self.seen[process.pid, name].append(
                    Sample(
                        time.monotonic(), process.memory_info().rss, process.num_threads(), process.num_fds()
                    )
                )

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            self.look()
            await asyncio.sleep(SAMPLE_S)

    def rows(self, warm: float, end: float) -> Iterator[tuple[str, list[float], list[float]]]:
        """Of processes that were there all the time: medians of the minutes before `warm` and `end`."""
        for (pid, name), samples in sorted(self.seen.items()):
            early, late = ([s for s in samples if moment - 60 <= s.at <= moment] for moment in (warm, end))
            if early and late:
                yield f"{name} ({pid})", _medians(early), _medians(late)

    def series(self, warm: float, end: float) -> Iterator[str]:
        """The median memory of each minute up to `end`, of processes that grew after `warm`."""
        grown = {name for name, (rss, *_), (rss_end, *_) in self.rows(warm, end) if rss_end > 1.02 * rss}
        for (pid, name), samples in sorted(self.seen.items()):
            if f"{name} ({pid})" in grown:
                minutes: dict[int, list[Sample]] = defaultdict(list)
                for sample in samples:
                    minutes[int((end - sample.at) // 60)].append(sample)
                medians = [_medians(minutes[minute])[0] for minute in sorted(minutes, reverse=True)]
                yield f"* {name} ({pid}): {' '.join(f'{rss / 2**20:.0f}' for rss in medians)}"


def _medians(samples: list[Sample]) -> list[float]:
    return [statistics.median(getattr(s, name) for s in samples) for name in ("rss", "threads", "files")]


def deploy_file(folder: Path) -> Path:
    """`deploy/local.yaml` on ports of its own, with its journal in `folder`."""
    raw = yaml.safe_load((ROOT / "deploy" / "local.yaml").read_text())
    raw["http_options"]["port"] = PORT
    system = next(app for app in raw["applications"] if app["name"] == "system")
    system["args"] = {**system.get("args", {}), "grpc_port": GRPC_PORT, "usage_dir": str(folder / "usage")}
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("the server did not start")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{PORT}/readyz", timeout=2).status_code == 200:
                return
        time.sleep(0.5)
    raise SystemExit("the server was not ready in time")


async def soak(args: argparse.Namespace, root: psutil.Process) -> tuple[Log, Watch, float, float]:
    log, watch = Log(), Watch(root)
    begun = time.monotonic()
    warm, end = begun + args.warm_minutes * 60, begun + args.minutes * 60
    limits = httpx.Limits(max_connections=args.streams * 2)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=120, limits=limits) as http:
        clients = [Client(http, log, random.Random(args.seed + i)) for i in range(args.streams)]
        await asyncio.gather(watch.run(end), *(client.run(end) for client in clients))
    return log, watch, warm, end


def problems_of_memory(watch: Watch, warm: float, end: float) -> Iterator[str]:
    for name, (rss, threads, files), (rss_end, threads_end, files_end) in watch.rows(warm, end):
        if rss_end > rss * (1 + GROWTH) + SLACK_BYTES:
            yield f"{name}: {rss / 2**20:.0f} MiB became {rss_end / 2**20:.0f}"
        if threads_end > threads + 8:
            yield f"{name}: {threads:.0f} threads became {threads_end:.0f}"
        if files_end > files + 24:
            yield f"{name}: {files:.0f} open files became {files_end:.0f}"


def problems_at_rest() -> Iterator[str]:
    """A fresh request is answered, and then nothing runs."""
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 8}
        if (status := http.post("/v1/chat/completions", json=body).status_code) != 200:
            yield f"a fresh request is answered with {status}"
        idle = (
            "running_sequences",
            "waiting_sequences",
            "waiting_tokens",
            "requests_in_flight",
            "kv_blocks_used",
        )
        busy: dict[str, float] = {}
        for _ in range(30):  # gauges are of a second ago
            page = http.get("/metrics").text
            values = {
                line.split()[0].partition("{")[0]: float(line.split()[-1])
                for line in page.splitlines()
                if line.startswith("serve_app_")
            }
            busy = {name: values[f"serve_app_{name}"] for name in idle if values[f"serve_app_{name}"]}
            if not busy:
                return
            time.sleep(1)
        yield f"not at rest: {busy}"


def problems_of_records(log: Log, folder: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "serve_app.cli",
        "usage",
        "--records",
        "--since",
        "1d",
        "--dir",
        str(folder),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    counted = Counter(json.loads(line)["id"] for line in told.splitlines())
    if twice := [each for each, count in counted.items() if count > 1]:
        yield f"{len(twice)} ids have two records"
    if missing := [each for each in log.ids if each not in counted]:
        yield f"{len(missing)} of {len(log.ids)} answers have no record"


def left_over(pids: set[int]) -> list[int]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not (left := [pid for pid in pids if psutil.pid_exists(pid)]):
            return []
        time.sleep(0.5)
    return left


def arguments() -> argparse.Namespace:
    """What the command line says. Growth is measured behind the warm minutes, so there must be some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--warm-minutes", type=float, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not 0 <= args.warm_minutes < args.minutes < math.inf:
        parser.error("--minutes: must be above --warm-minutes, which must be 0 or more")
    return args


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "serve_app.cli", "serve", str(deploy_file(folder))]
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            wait_until_ready(server)
            root = psutil.Process(server.pid)
            log, watch, warm, end = asyncio.run(soak(args, root))
            problems = [*log.wrong[:20], *problems_at_rest(), *problems_of_memory(watch, warm, end)]
            pids = {server.pid, *(child.pid for child in root.children(recursive=True))}
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(120)
        problems += problems_of_records(log, folder / "usage")
        problems += [f"process {pid} is left" for pid in left_over(pids)]
    report = table(args, log, watch, warm, end, problems)
    print(report)
    if args.out is not None:
        args.out.write_text(report)
    return 1 if problems else 0


def table(
    args: argparse.Namespace, log: Log, watch: Watch, warm: float, end: float, problems: list[str]
) -> str:
    lines = [
        f"# Soak, {date.today()}",
        "",
        f"`python benchmarks/soak.py --minutes {args.minutes:g} --streams {args.streams} --seed {args.seed}` "
        "on "
        f"{platform.machine()}, {os.cpu_count()} cores; {sum(log.done.values())} actions: "
        + ", ".join(f"{name} {count}" for name, count in sorted(log.done.items())) + ".",
        "",
        f"Memory, threads and open files of each process: the median of the minute before minute "
        f"{args.warm_minutes:g}, and of the last one.",
        "",
        "| process | MiB | MiB at the end | growth | threads | files |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, (rss, threads, files), (rss_end, threads_end, files_end) in watch.rows(warm, end):
        lines.append(
            f"| {name} | {rss / 2**20:.0f} | {rss_end / 2**20:.0f} | {rss_end / rss - 1:+.1%} "
            f"| {threads:.0f}, {threads_end:.0f} | {files:.0f}, {files_end:.0f} |"
        )
    lines += ["", "MiB by minute, of processes that grew by more than 2 %:", ""]
    lines += watch.series(warm, end)
    lines += ["", "Problems: " + ("none." if not problems else ""), *(f"* {each}" for each in problems)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
