"""Two kinds of the CPU kernels, or of the KV cache, against each other, step by step in one process.

    python benchmarks/kernels_ab.py MODEL --sources OTHER/serve_app/engine/kernels/src [--disturb 6]
        [--decodes 1 4 16 32] [--context 192] [--prompts 512]
    python benchmarks/kernels_ab.py MODEL --products widened pairs
    python benchmarks/kernels_ab.py MODEL --caches auto int8

Steps alternate in random order, so that a slow minute of the machine hits both; the other build, of
`--sources`, must have the same functions as ours. SERVE_APP_KERNELS_FLAGS holds for both. Prints a Markdown
table of medians and their ratios, the first over the second.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from step import CONTEXT, DECODES, batch_of, disturbed, make_runner

from serve_app.engine.kernels import build, native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import Product
from serve_app.engine.model.runner import ModelRunner

Variant = Callable[[], None]  # runs the step of the moment


def loaded() -> Native:
    kernels = native()
    if kernels is None:
        raise SystemExit("there are no native kernels on this machine")
    return kernels


@contextmanager
def compiled(sources: Path) -> Iterator[Native]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "other.so"
        files = sorted(map(str, sources.glob("*.cpp")))
        subprocess.run([*build.command(), *files, "-o", str(path)], check=True)
        yield Native(path)


def builds(model: str, other: Native) -> Callable[[int, int, bool], dict[str, Variant]]:
    """Steps by the other build and by ours, of one model."""
    kernels = loaded()
    libraries = {"other": other._library, "ours": kernels._library}
    runner = make_runner(model, "fused")

    def steps(count: int, tokens: int, decode: bool) -> dict[str, Variant]:
        batch = batch_of(runner, count, tokens, decode=decode)

        def run(name: str) -> None:
            kernels._library = libraries[name]
            runner.run(batch)

        return {name: lambda name=name: run(name) for name in libraries}  # type: ignore[misc]

    return steps


def products(model: str, names: list[str]) -> Callable[[int, int, bool], dict[str, Variant]]:
    """Steps of one model whose weights are multiplied in these ways."""
    kernels, runners = loaded(), {}
    for name in names:
        kernels.products = kernels.products | {torch.bfloat16: (Product[name.upper()],)}
        runners[name] = make_runner(model, "fused")
    return taking_turns(runners)


def caches(model: str, names: list[str]) -> Callable[[int, int, bool], dict[str, Variant]]:
    """Steps of one model with these KV caches."""
    return taking_turns({name: make_runner(model, "fused", name) for name in names})


def taking_turns(runners: dict[str, ModelRunner]) -> Callable[[int, int, bool], dict[str, Variant]]:
    """Steps of several runners."""

    def steps(count: int, tokens: int, decode: bool) -> dict[str, Variant]:
        batches = {name: batch_of(runner, count, tokens, decode=decode) for name, runner in runners.items()}
        return {name: lambda name=name: runners[name].run(batches[name]) for name in runners}  # type: ignore[misc]

    return steps


def compare(variants: dict[str, Variant], repeats: int) -> dict[str, float]:
    """Median milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name in random.sample(list(variants), len(variants)):
            variants[name]()  # fills the caches with what it needs
            began = time.perf_counter()
            variants[name]()
            times[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(
    steps: Callable[[int, int, bool], dict[str, Variant]],
    decodes: list[int],
    context: int,
    prompts: list[int],
    repeats: int,
) -> None:
    rows = [(f"decode B={b}", b, context, True, repeats) for b in decodes]
    rows += [(f"prefill {tokens}", 1, tokens, False, max(2, repeats // 8)) for tokens in prompts]
    for index, (name, count, tokens, decode, times) in enumerate(rows):
        medians = compare(steps(count, tokens, decode), times)
        if not index:
            print(
                f"| step | {' | '.join(f'{variant} ms' for variant in medians)} | ratio |\n|---|---|---|---|"
            )
        first, second = medians.values()
        print(f"| {name} | {first:.2f} | {second:.2f} | {first / second:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sources", type=Path, help="folder of another version's kernels")
    what.add_argument("--products", nargs=2, choices=[p.name.lower() for p in Product])
    what.add_argument("--caches", nargs=2, choices=["auto", "int8"], help="engine.kv_cache_dtype of each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--decodes", type=int, nargs="*", default=list(DECODES), metavar="SEQUENCES")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens of each decoding sequence")
    parser.add_argument("--prompts", type=int, nargs="*", default=[512], metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=100, help="decoding steps; an eighth as many prompts")
    parser.add_argument("--disturb", type=int, default=0, metavar="PROCESSES", help="see step.py")
    options = parser.parse_args()
    print(f"`python {' '.join(sys.argv)}`\n\n{datetime.date.today()}, {options.threads} threads\n")
    with disturbed(options.disturb):  # before torch has threads
        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        sizes = options.decodes, options.context, options.prompts, options.repeats
        if options.products or options.caches:
            runners = products if options.products else caches
            measure(runners(options.model, options.products or options.caches), *sizes)
            return
        with compiled(options.sources) as other:
            measure(builds(options.model, other), *sizes)


if __name__ == "__main__":
    main()
