"""Throughput through the whole stack (HTTP, gateway, replica) beside the same mixes in process.

    python benchmarks/make_model.py smol135 build/models
    python benchmarks/whole_stack.py build/models/smol135 --mix c1 --mix c16 --rounds 3

Both sides run the same `ModelConfig`. In process there is no HTTP, no JSON and no client:
requests go straight to `ModelServer`. Rounds alternate, so that a slow minute of the
machine hits both sides. With `--turns N` both are up all the time and take turns of a few
seconds, the server's processes stopped during the other's: on a machine that is not quiet
only this compares them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import psutil
import yaml
from deployment import NAME, deploy_file, model_config
from load import MIXES, Mix, Prompts, Seen, drive, summary

from serve_app.config import ModelConfig
from serve_app.replica.server import ModelServer
from serve_app.types import GenerateRequest, Prompt, SamplingParams, TokenDelta

ROOT = Path(__file__).resolve().parents[1]
PORT = 18431
SIDES = ("in-process", "http")
CATCH_UP_S = 0.6  # after a stop Ray's processes do what is overdue
TURN_REQUESTS = 2  # of a turn, or as many as run at once


@contextlib.contextmanager
def serving(
    config: ModelConfig, *flags: str, port: int = PORT, tree: Path = ROOT
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of `config` by the code of `tree`, on a private cluster; its URL and process, once ready."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(deploy_file(config, port), file)
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "serve_app.cli", "serve", file.name, *flags],
            stdout=sys.stderr,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, process)
            yield url, process
        finally:
            signal_all(process.pid, signal.SIGCONT)
            process.terminate()
            process.wait(90)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to all descendants of a process."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(number)


def wait_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server ended; its output says why")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/readyz", timeout=2).close()
            return
        time.sleep(0.5)
    raise RuntimeError("the server did not become ready")


class Listener:
    """Times the deltas of one in-process request."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._start = self._last = time.perf_counter()

    def send(self, deltas: list[TokenDelta]) -> None:
        now = time.perf_counter()
        for delta in deltas:
            self.seen.prompt_tokens = delta.usage.prompt_tokens
            self.seen.output_tokens = delta.usage.completion_tokens
            if delta.error is not None:
                self.seen.error = delta.error.message
        if self.seen.first_token:
            self.seen.gaps.append(now - self._last)
        else:
            self.seen.first_token = now - self._start
        self._last = now
        self.seen.end = now - self._start


async def in_process(
    server: ModelServer, prompts: Iterator[list[int]], mix: Mix, count: int
) -> tuple[list[Seen], float]:
    """The same closed loop as `load.drive`, without a network."""
    waiting = iter([tuple(next(prompts)) for _ in range(count)])
    results: list[Seen] = []

    async def worker(number: int) -> None:
        for index, ids in enumerate(waiting):
            listener = Listener()
            await server.generate(
                GenerateRequest(
                    id=f"{time.monotonic_ns()}-{number}-{index}",
                    model=NAME,
                    prompt=Prompt(token_ids=ids),
                    sampling=SamplingParams(temperature=0.0, max_tokens=mix.output_len, ignore_eos=True),
                ),
                listener,
            )
            results.append(listener.seen)

    start = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(mix.concurrency)))
    return results, time.perf_counter() - start


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Rows of both sides, all rounds; a side is started anew for each round."""
    config, rows = model_config(args.model, args.dtype, args.device), []
    names = args.mix or list(MIXES)
    for round_number in range(args.rounds):
        for side in args.side:
            seeds = {name: (round_number * 2 + (side == "http")) * 100 + i for i, name in enumerate(names)}
            rows += asyncio.run(_side(side, args, config, names, seeds))
    return rows


async def _side(
    side: str, args: argparse.Namespace, config: ModelConfig, names: list[str], seeds: dict[str, int]
) -> list[dict[str, object]]:
    rows = []
    with contextlib.ExitStack() as stack:
        server = url = None
        if side == "http":
            flags = ["--no-haproxy"] if args.no_haproxy else []
            url, _ = stack.enter_context(serving(config, *flags))
        else:
            server = await ModelServer.start(config, lambda line: print(line, file=sys.stderr))
        for name in names:
            mix = MIXES[name]
            prompts = iter(Prompts(args.model, mix, seeds[name]))
            for count in filter(None, (mix.warmup, mix.requests)):
                if url is not None:
                    results, wall = await drive(url, NAME, prompts, mix, count)
                elif server is not None:
                    results, wall = await in_process(server, prompts, mix, count)
            row = summary(f"{args.label} {side}", name, mix, results, wall)
            rows.append(row)
            print(
                f"{side:10} {name:7} {row['output_tok_s']:8} tok/s  TTFT p50 {row['ttft_ms_p50']} ms  "
                f"ITL p50 {row['itl_ms_p50']} ms  errors {row['errors']}",
                flush=True,
            )
        if server is not None:
            await server.stop()
    return rows


async def in_turns(
    args: argparse.Namespace, config: ModelConfig, names: list[str]
) -> list[dict[str, object]]:
    """Rows of both sides, one a turn."""
    rows = []
    with serving(config, *(["--no-haproxy"] if args.no_haproxy else [])) as (url, _):
        server = await ModelServer.start(config, lambda line: print(line, file=sys.stderr))
        for name in names:
            mix = MIXES[name]
            prompts, count = iter(Prompts(args.model, mix, 0)), max(TURN_REQUESTS, mix.concurrency)
            await in_process(server, prompts, mix, count)
            await drive(url, NAME, prompts, mix, count)
            for _ in range(args.turns):
                with server_stopped():
                    results, wall = await in_process(server, prompts, mix, count)
                rows.append(summary(f"{args.label} in-process", name, mix, results, wall))
                results, wall = await drive(url, NAME, prompts, mix, count)
                rows.append(summary(f"{args.label} http", name, mix, results, wall))
                print(f"{name:7} {rows[-2]['output_tok_s']:8} {rows[-1]['output_tok_s']:8} tok/s", flush=True)
        await server.stop()
    return rows


@contextlib.contextmanager
def server_stopped() -> Iterator[None]:
    """No process of the server runs: all are children of this one."""
    signal_all(os.getpid(), signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(os.getpid(), signal.SIGCONT)
        time.sleep(CATCH_UP_S)


def report(rows: list[dict[str, object]], names: list[str]) -> str:
    """A table of medians and of the ratio of the two sides."""
    lines = ["| mix | in process tok/s | through HTTP tok/s | ratio | TTFT p50 / p99 ms | ITL p50 / p99 ms |"]
    lines.append("|---|---|---|---|---|---|")
    for name in names:
        sides: dict[str, list[dict[str, object]]] = {}
        for row in rows:
            if row["mix"] == name:
                sides.setdefault(str(row["label"]).rsplit(" ", 1)[1], []).append(row)

        def median(side: str, field: str, sides: dict[str, list[dict[str, object]]] = sides) -> float:
            return statistics.median(float(str(row[field])) for row in sides[side])

        rates = {side: median(side, "output_tok_s") for side in sides}
        shown = [f"{rates[side]:.1f}" if side in rates else "" for side in SIDES]
        ratio = f"{rates['http'] / rates['in-process']:.2f}" if len(rates) == 2 else ""
        last = "http" if "http" in sides else "in-process"
        lines.append(
            f"| {name} | {shown[0]} | {shown[1]} | {ratio} "
            f"| {median(last, 'ttft_ms_p50'):.0f} / {median(last, 'ttft_ms_p99'):.0f} "
            f"| {median(last, 'itl_ms_p50'):.1f} / {median(last, 'itl_ms_p99'):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--mix", action="append", choices=sorted(MIXES), help="default: all")
    parser.add_argument("--side", choices=SIDES, nargs="+", default=SIDES, help="default: both")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--turns", type=int, default=0, help="instead of rounds: many short turns of both sides"
    )
    parser.add_argument("--label", default="serve-app")
    parser.add_argument("--no-haproxy", action="store_true", help="Ray Serve's own Python proxy in front")
    parser.add_argument("--out", type=Path, help="append the rows as JSON lines")
    args = parser.parse_args()
    names = args.mix or list(MIXES)
    config = model_config(args.model, args.dtype, args.device)
    rows = asyncio.run(in_turns(args, config, names)) if args.turns else measure(args)
    times = f"turns {args.turns}" if args.turns else f"rounds {args.rounds}"
    print(f"\n{date.today()}, {platform.processor() or platform.machine()}, {times}")
    print(report(rows, names))
    if args.out:
        with args.out.open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
