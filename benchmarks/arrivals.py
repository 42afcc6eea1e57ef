"""First tokens, and gaps between tokens, when prompts arrive in bursts, with one prefix, or beside decodes.

    git worktree add build/before COMMIT
    python benchmarks/arrivals.py build/models/smol135 --tree before=build/before --tree after=. --turns 5

Engines of one or several trees of this project, in process, without HTTP: each in a process of its own,
which stands still while another one works. The trees take turns and get the same prompts. Prints a Markdown
table of medians over the turns. The machine should be quiet: every figure is elapsed time.

| scenario | what arrives |
|---|---|
| burst | 16 prompts of 128 tokens at once, 64 tokens out |
| c16 | a closed loop of 16 requests, 128 tokens in and out |
| guests | the same, and a prompt of 2,000 tokens every two seconds, of which only the first token is wanted |
| prefix | 8 prompts at once, 1,000 tokens of them in common and 32 of their own, 32 tokens out |
| long | a closed loop of 2 requests, 2,000 tokens in, 16 out |
| late | a prompt of 2,000 tokens, and one of 30 just after it |
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from load import percentile

SCENARIOS = ("burst", "c16", "guests", "prefix", "long", "late")
FIGURES = ("tok_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")


@dataclass
class Ask:
    """One request of a scenario, and what was seen of it. Times in seconds since the scenario began."""

    prompt: list[int]
    output: int
    at: float = 0.0  # when it arrives; ignored in a closed loop
    counted: bool = True  # among the figures
    sent: float = 0.0
    times: list[float] = field(default_factory=list)  # of each token


def asks_of(scenario: str, seed: int, vocab_size: int) -> tuple[list[Ask], int]:
    """The requests of a scenario, and how many of them are in flight; 0: each comes at its time."""
    rng = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [rng.randrange(100, vocab_size) for _ in range(count)]

    if scenario == "burst":
        return [Ask(draw(128), 64) for _ in range(16)], 0
    if scenario == "c16":
        return [Ask(draw(128), 128) for _ in range(48)], 16
    if scenario == "guests":
        guests = [Ask(draw(2000), 1, at=1.0 + 2.0 * i, counted=False) for i in range(3)]
        return [Ask(draw(128), 128) for _ in range(48)] + guests, 16
    if scenario == "prefix":
        shared = draw(1000)
        return [Ask(shared + draw(32), 32) for _ in range(8)], 0
    if scenario == "long":
        return [Ask(draw(2000), 16) for _ in range(6)], 2
    return [Ask(draw(2000), 2, counted=False), Ask(draw(30), 2, at=0.02)], 0


def run(engine: Any, asks: list[Ask], in_flight: int) -> dict[str, float]:
    """Drive the engine through a scenario; returns its figures, in milliseconds and tokens a second."""
    from serve_app.types import EngineRequest, SamplingParams

    closed = [ask for ask in asks if ask.at == 0.0] if in_flight else []
    timed = sorted((ask for ask in asks if not in_flight or ask.at > 0.0), key=lambda ask: ask.at)
    open_asks: dict[str, Ask] = {}
    start = time.perf_counter()

    def send(ask: Ask, sent: float) -> None:
        name = f"{time.monotonic_ns()}"
        ask.sent, open_asks[name] = sent, ask
        sampling = SamplingParams(temperature=0.0, max_tokens=ask.output, ignore_eos=True)
        engine.add(EngineRequest(id=name, token_ids=tuple(ask.prompt), sampling=sampling))

    while closed or timed or open_asks:
        now = time.perf_counter() - start
        while timed and timed[0].at <= now:
            ask = timed.pop(0)
            send(ask, ask.at)
        while closed and sum(ask.counted for ask in open_asks.values()) < in_flight:
            send(closed.pop(0), now)
        for output in engine.step():
            ask = open_asks[output.request_id]
            ask.times += [time.perf_counter() - start] * len(output.token_ids)
            if output.finish is not None:
                del open_asks[output.request_id]
    return figures_of(asks)


def figures_of(asks: list[Ask]) -> dict[str, float]:
    """What was seen of the requests that count, in milliseconds and tokens a second."""
    counted = [ask for ask in asks if ask.counted]
    wall = max(ask.times[-1] for ask in counted)
    first = [1e3 * (ask.times[0] - ask.sent) for ask in counted]
    gaps = [1e3 * (b - a) for ask in counted for a, b in zip(ask.times, ask.times[1:], strict=False)]
    return {
        "tok_s": sum(len(ask.times) for ask in counted) / wall,
        "ttft_p50": percentile(first, 0.5),
        "ttft_p99": percentile(first, 0.99),
        "itl_p50": percentile(gaps, 0.5),
        "itl_p99": percentile(gaps, 0.99),
    }


def work(model: str, dtype: str, threads: int) -> None:
    """The child of one tree: a line of standard input asks for a scenario, a line of output answers."""
    from serve_app.config import EngineConfig, ModelConfig
    from serve_app.replica.build import load_engine

    config = ModelConfig(
        name="bench",
        source=model,
        dtype=dtype,
        threads=threads,
        engine=EngineConfig(ngram_draft=0, max_model_len=4096, max_sequences=64, kv_cache_bytes=1 << 30),
    )
    engine = load_engine(config, lambda _: None)[0]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        scenario, seed = json.loads(line)
        asks, in_flight = asks_of(scenario, seed, engine.vocab_size)
        print(json.dumps(run(engine, asks, in_flight)), flush=True)


class Tree:
    """The engine of one tree, in a child process."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, str(options.model.resolve()), "--work"]
        self._child = subprocess.Popen(
            [*command, "--dtype", options.dtype, "--threads", str(options.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=path,
            env={**os.environ, "PYTHONPATH": str(path.resolve())},
        )
        self._read()

    def ask(self, scenario: str, seed: int) -> dict[str, float]:
        if self._child.stdin is None:
            raise RuntimeError("the child has no standard input")
        self._child.stdin.write(json.dumps([scenario, seed]) + "\n")
        self._child.stdin.flush()
        figures: dict[str, float] = self._read()
        return figures

    def end(self) -> None:
        self._child.terminate()
        self._child.wait(30)

    def _read(self) -> Any:
        line = self._child.stdout.readline() if self._child.stdout is not None else ""
        if not line:
            raise RuntimeError("a tree's process ended")
        return json.loads(line)


def in_turns(trees: dict[str, Tree], scenario: str, turns: int) -> dict[str, dict[str, list[float]]]:
    """The figures of each tree, a list of all turns each; the first turn is not counted."""
    seen: dict[str, dict[str, list[float]]] = {name: {f: [] for f in FIGURES} for name in trees}
    for turn in range(turns + 1):
        names = list(trees)
        for name in names if turn % 2 else reversed(names):
            figures = trees[name].ask(scenario, 1000 * turn + SCENARIOS.index(scenario))
            if turn:
                for figure in FIGURES:
                    seen[name][figure].append(figures[figure])
    return seen


def line_of(label: str, of: Callable[[str], float]) -> str:
    share = of("itl_p99") / of("itl_p50")
    return (
        f"| {label} | {of('tok_s'):.0f} | {of('ttft_p50'):.0f} | {of('ttft_p99'):.0f} "
        f"| {of('itl_p50'):.1f} | {of('itl_p99'):.1f} | {share:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tree", action="append", metavar="NAME=FOLDER", help="default: here=.")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(str(options.model), options.dtype, options.threads)
        return
    named = (entry.split("=", 1) for entry in options.tree or ["here=."])
    trees = {name: Tree(Path(folder), options) for name, folder in named}
    print(f"\n{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {options.turns} turns\n")
    print("| scenario | tree | tok/s | TTFT p50 ms | p99 | ITL p50 ms | p99 | p99/p50 |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    try:
        for scenario in options.scenario or SCENARIOS:
            seen = in_turns(trees, scenario, options.turns)
            for name in trees:
                middles = {figure: statistics.median(values) for figure, values in seen[name].items()}
                print(line_of(f"{scenario} | {name}", middles.__getitem__), flush=True)
    finally:
        for tree in trees.values():
            tree.end()


if __name__ == "__main__":
    main()
