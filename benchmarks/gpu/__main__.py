"""Engines beside each other on one device, in process: prefill, decode, long contexts and mixed traffic.

    python -m benchmarks.gpu run                               # all that is installed, on CUDA
    python -m benchmarks.gpu run --shape llama-3.1-8b --contender ours --contender continuous-batching
    python -m benchmarks.gpu run --shape llama-3.1-8b --part decode --contender ours --contender ours-fp8 \
        --contender ours-int8 --contender ours-int4
    python -m benchmarks.gpu run --device cpu --shape tiny     # to try the benchmark out
    python -m benchmarks.gpu page build/gpu/run.jsonl --page benchmarks/results/gpu.md

It needs torch, transformers and, for our kernels, Triton. It needs no Ray, no network and no model: it makes
models with random weights on the device. `run` goes on where a run with the same `--out` was cut.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.load import MIXED, PARTS, PLANS
from benchmarks.peers.journal import FAILURE, MACHINE, Journal

OUT: Final = Path("build/gpu/run.jsonl")
# Where each contender is: imported in its own process alone.
CONTENDERS: Final = {
    "ours": ("benchmarks.gpu.ours", "Ours"),
    "ours-fp8": ("benchmarks.gpu.ours", "InFp8"),
    "ours-int8": ("benchmarks.gpu.ours", "InInt8"),
    "ours-int4": ("benchmarks.gpu.ours", "InInt4"),
    "ours-int8-cache": ("benchmarks.gpu.ours", "Int8Cache"),
    "ours-fp8-cache": ("benchmarks.gpu.ours", "Fp8Cache"),
    "ours-with-adapters": ("benchmarks.gpu.ours", "WithAdapters"),
    "ours-without-graphs": ("benchmarks.gpu.ours", "WithoutGraphs"),
    "ours-plain-torch": ("benchmarks.gpu.ours", "PlainTorch"),
    "continuous-batching": ("benchmarks.gpu.rivals", "ContinuousBatching"),
    "generate": ("benchmarks.gpu.rivals", "Generate"),
    "vllm": ("benchmarks.gpu.rivals", "Vllm"),
}
USUAL: Final = (
    "qwen3-0.6b",
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "qwen3.5-9b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
)
DTYPES: Final = ("bfloat16", "float16", "float32")


def contender(name: str) -> Any:
    module, kind = CONTENDERS[name]
    return getattr(importlib.import_module(module), kind)


def run(args: argparse.Namespace) -> int:
    """Every contender in a process of its own, so that none leaves memory or a failure to the next one."""
    journal = Journal(args.out)
    journal.append(
        MACHINE, **machine(args.device), command=f"python -m benchmarks.gpu {' '.join(sys.argv[1:])}"
    )
    names = args.contender or list(CONTENDERS)
    for number in range(args.rounds):
        for shape in args.shape or USUAL:
            for name in names[number % len(names) :] + names[: number % len(names)]:
                where = {"round": number, "shape": shape, "contender": name}
                print(f"round {number}, {shape}, {name}", flush=True)
                reason = one_process(args, where)
                journal = Journal(args.out)  # the process wrote to it
                if reason:
                    print(f"  {reason}", flush=True)
                    journal.append(FAILURE, **where, name="all", reason=reason)
    return write(args.out, args.page)


def one_process(args: argparse.Namespace, where: dict[str, Any]) -> str:
    """Why it failed; empty: it did not."""
    python = args.vllm_python if where["contender"] == "vllm" and args.vllm_python else sys.executable
    command = [python, "-m", "benchmarks.gpu", "one", "--out", str(args.out), "--device", args.device]
    command += ["--dtype", args.dtype, "--repeats", str(args.repeats)]
    if args.rate:
        command += ["--rate", str(args.rate)]
    for part in args.part or PARTS:
        command += ["--part", part]
    for key, value in where.items():
        command += [f"--{key}", str(value)]
    # In a file, where it is complete, also of a run that somebody else ends.
    log = args.out.with_name(f"{args.out.stem}.{where['shape']}.{where['contender']}.log")
    try:
        with log.open("w", encoding="utf-8") as said:
            done = subprocess.run(command, timeout=args.limit, check=False, stderr=said)
    except subprocess.TimeoutExpired:
        return f"ended after {args.limit:.0f} s"
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    if lines:
        print(f"  {len(lines)} lines in {log}", flush=True)
    if done.returncode == 0:
        return ""
    return f"ended with {done.returncode}: {lines[-1][:300] if lines else 'without a word'}"


def one(args: argparse.Namespace) -> int:
    import torch

    from benchmarks.gpu.contender import Setup
    from benchmarks.gpu.measure import JOB, TRAFFIC, Bench

    where = {"round": args.round, "shape": args.shape, "contender": args.contender}
    journal = Journal(args.out)
    done = {
        record["name"]
        for record in journal.records
        if record["kind"] in (JOB, TRAFFIC) and all(record[key] == value for key, value in where.items())
    }
    plan = PLANS[args.shape]
    if args.rate:
        plan = replace(plan, traffic=plan.traffic.at(args.rate))
    wanted = [job.name for part in args.part for job in plan.jobs(part)]
    wanted += [plan.traffic.name] if MIXED in args.part else []
    if set(wanted) <= done:
        return 0
    setup = Setup(args.shape, plan, getattr(torch, args.dtype), torch.device(args.device))
    bench = Bench(contender(args.contender), setup, journal, where)
    try:
        bench.run(args.part, done, args.repeats)
    finally:
        bench.close()
    return 0


def machine(device: str) -> dict[str, Any]:
    import torch

    cuda = device == "cuda"
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "driver": f"CUDA {torch.version.cuda}" if cuda else "no CUDA: these figures say nothing of a GPU",
    }


def write(journal: Path, target: Path | None) -> int:
    from benchmarks.gpu.page import page

    records = Journal(journal).records
    named = {record["contender"] for record in records if "contender" in record}
    text = page(records, {name: contender(name).notes for name in named})
    if target is None:
        print(text)
    else:
        target.write_text(text, "utf-8")
    return 0


def above_0(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--out", type=Path, default=OUT, help="the journal; it may exist")
    every.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    every.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    every.add_argument("--part", action="append", choices=PARTS, help="default: all")
    every.add_argument("--repeats", type=int, default=3)
    every.add_argument(
        "--rate", type=above_0, help="requests a second of mixed traffic; default: the shape's"
    )
    each = commands.add_parser("run", parents=[every], help="measure all contenders, one after another")
    each.add_argument("--shape", action="append", choices=list(PLANS), help=f"default: {' and '.join(USUAL)}")
    each.add_argument("--contender", action="append", choices=list(CONTENDERS), help="default: all")
    each.add_argument("--rounds", type=int, default=1)
    each.add_argument("--limit", type=float, default=300.0, help="seconds of one contender with one shape")
    each.add_argument(
        "--vllm-python", help="the interpreter of an environment with vLLM, torch and this tree"
    )
    each.add_argument("--page", type=Path, help="write the page here instead of to the terminal")
    each.set_defaults(do=run)
    each = commands.add_parser("one", parents=[every], help="measure one contender, in this process")
    each.add_argument("--shape", choices=list(PLANS), required=True)
    each.add_argument("--contender", choices=list(CONTENDERS), required=True)
    each.add_argument("--round", type=int, default=0)
    each.set_defaults(do=one)
    each = commands.add_parser("page", help="the page of a journal")
    each.add_argument("journal", type=Path)
    each.add_argument("--page", type=Path)
    each.set_defaults(do=lambda args: write(args.journal, args.page))
    args = parser.parse_args()
    return int(args.do(args))


if __name__ == "__main__":
    sys.exit(main())
