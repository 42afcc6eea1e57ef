"""Time of one engine step on a CPU, in process: no server, no scheduler, no sampler.

    python benchmarks/step.py MODEL [--paths fused packed hf] [--threads 2] [--repeats 20] [--disturb 6]
    python benchmarks/step.py MODEL --paths fused int8 int4 --rounds 5

MODEL is a local folder; `benchmarks/make_model.py` writes one with random weights. Decode rows
are steps of B sequences with 192 tokens of context each, prefill rows are whole prompts. Paths: hf is
transformers' module with our paged attention, packed adds packed linears, fused adds fused layers; int8 and
int4 are fused with quantised weights. With --rounds N, the paths take turns, N times each.
With --disturb N, N other processes wake up every 3 to 9 ms for 0.15 ms of work, as idle servers do.
Prints a Markdown table of medians and minima. On a shared machine the minimum says more than the median, and
with --threads 1 the CPU time more than both; with more threads it includes their waiting for work. Torch is
loaded before serve_app here: with GOMP_SPINCOUNT=3000 its threads sleep as soon as in a server.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from serve_app.config import EngineConfig
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.kernels.build import cpu_flags
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.plain import PLAIN
from serve_app.types import SamplingParams

CONTEXT: Final = 192  # tokens of every decoding sequence
DECODES: Final = (1, 4, 16, 32)
PREFILLS: Final = (512, 2048)
PATHS: Final = ("fused", "packed", "hf", *Quantization)
NOTABLE: Final = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def make_runner(folder: str, path: str, cache: str = "auto") -> ModelRunner:
    """`cache`: as `engine.kv_cache_dtype`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    if path != "hf":
        accelerate_cpu(model, torch.bfloat16, fused=path != "packed", weights=FORMATS.get(path, PLAIN))
    return ModelRunner(
        model,
        backend=CpuAttention(),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        config=EngineConfig(kv_cache_bytes=2 << 30, kv_cache_dtype=cache),  # type: ignore[arg-type]
    )


def batch_of(runner: ModelRunner, count: int, tokens: int, *, decode: bool) -> Batch:
    """`count` sequences of `tokens` tokens: their last token each, or all of them."""
    blocks = -(-tokens // runner.block_size)
    if count * blocks > runner.num_blocks:
        raise SystemExit(f"the cache holds {runner.num_blocks} blocks of the {count * blocks} of this batch")
    chunks = []
    for index in range(count):
        sequence = Sequence(
            request_id=str(index),
            index=0,
            prompt_len=tokens,
            token_ids=torch.randint(0, runner.vocab_size, (tokens,)).tolist(),
            sampling=SamplingParams(),
            seed=0,
            block_table=list(range(index * blocks, (index + 1) * blocks)),
        )
        start = tokens - 1 if decode else 0
        chunks.append(Chunk(sequence, start, tokens - start, tokens - 1))
    return build_batch(chunks, runner.block_size, runner.device)


def time_step(runner: ModelRunner, batch: Batch, repeats: int) -> list[tuple[float, float]]:
    """Milliseconds (elapsed, CPU time) of each of `repeats` runs, after one that is not counted."""
    runner.run(batch)
    times = []
    for _ in range(repeats):
        begin, cpu = time.perf_counter(), time.process_time()
        runner.run(batch)
        times.append(((time.perf_counter() - begin) * 1e3, (time.process_time() - cpu) * 1e3))
    return times


def disturb() -> None:
    """Wake up for a moment, again and again."""
    while True:
        time.sleep(random.uniform(0.003, 0.009))
        end = time.perf_counter() + 150e-6
        while time.perf_counter() < end:
            pass


@contextlib.contextmanager
def disturbed(count: int) -> Iterator[None]:
    """With `count` processes that do so."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=disturb, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--paths", nargs="+", default=["fused", "packed", "hf"], choices=PATHS)
    parser.add_argument("--prefills", nargs="*", type=int, default=list(PREFILLS), metavar="TOKENS")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--disturb", type=int, default=0, metavar="PROCESSES")
    options = parser.parse_args()
    with disturbed(options.disturb):  # before torch has threads
        measure(options)


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    has = cpu_flags()
    machine = f"torch {torch.__version__}, {platform.machine()}, {options.threads} threads"
    flags = ", ".join(f"{flag} {'yes' if flag in has else 'no'}" for flag in NOTABLE)
    print(f"`python {' '.join(sys.argv)}`\n")
    print(f"{datetime.date.today()}, {machine}; {flags}\n")
    print(
        "| path | step | median ms | min ms | min CPU ms | median tok/s | best tok/s |\n"
        "|---|---|---|---|---|---|---|"
    )
    runners = {path: make_runner(options.model, path) for path in options.paths}
    steps = [(f"decode B={count}", count, CONTEXT, True) for count in DECODES]
    steps += [(f"prefill {count}", 1, count, False) for count in options.prefills]
    for name, count, length, decode in steps:
        repeats = options.repeats if decode else max(2, options.repeats // 5)
        batches = {path: batch_of(runner, count, length, decode=decode) for path, runner in runners.items()}
        times: dict[str, list[tuple[float, float]]] = {path: [] for path in runners}
        for _ in range(options.rounds):  # in turns: a machine that slows down slows all paths down
            for path, runner in runners.items():
                times[path] += time_step(runner, batches[path], repeats)
        for path, found in times.items():
            elapsed = [wall for wall, _ in found]
            middle, best, cpu = statistics.median(elapsed), min(elapsed), min(used for _, used in found)
            tokens = count if decode else length
            rates = f"{tokens / middle * 1e3:.0f} | {tokens / best * 1e3:.0f}"
            print(f"| {path} | {name} | {middle:.1f} | {best:.1f} | {cpu:.1f} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
