"""The experts of one layer on a CPU: the time of a few rows, beside what reading the chosen weights takes.

    python benchmarks/experts.py [--experts 128] [--chosen 8] [--inputs 2048] [--inner 768] [--rows 1 4 16]

The defaults have the shape of Qwen3-30B-A3B. Reading is measured in the same process and in turn: the threads
of the kernels look for the largest of as many bytes of numbers, in huge pages as weights are. Experts are
drawn anew for each call, and all of them together do not fit into the caches. Times are the least of the
repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from serve_app.engine.experts.packed import PackedExperts
from serve_app.engine.kernels import native
from serve_app.engine.kernels.arena import zeros
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.packed_linear import PackedLinear

PARTS = 64  # that threads share, of the bytes that are read for comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--chosen", type=int, default=8)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = Qwen3MoeConfig(
        num_experts=options.experts, hidden_size=options.inputs, moe_intermediate_size=options.inner
    )
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    module = Qwen3MoeExperts(config).bfloat16()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.02)
    print(f"{options.experts} experts, {options.chosen} of them for a row, {options.threads} threads")
    print("| weights | rows | experts read | MiB | GB/s of reading | reading, ms | experts, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in FORMATS:
        for rows in options.rows:
            _measure(module, name, rows, options)


def _measure(module: nn.Module, name: str, rows: int, options: argparse.Namespace) -> None:
    load, kernels = FORMATS[name].loads["cpu"], native()
    if kernels is None:
        raise SystemExit("no native kernels on this machine")
    with torch.inference_mode():
        experts = PackedExperts(
            module, lambda *linears, rows=None: PackedLinear.of(*linears, rows=rows, load=load)
        )
        each = experts.num_bytes / options.experts
        x = torch.randn(rows, options.inputs)
        weights = torch.full((rows, options.chosen), 1 / options.chosen)
        memory = zeros(experts.num_bytes // 4, torch.float32).fill_(1)
        times: list[tuple[float, float, int]] = []
        for _ in range(options.repeats):
            chosen = torch.stack([torch.randperm(options.experts)[: options.chosen] for _ in range(rows)])
            hit = len(chosen.unique())
            width = int(hit * each) // 4 // PARTS
            start = int(torch.randint(len(memory) - PARTS * width + 1, ()))
            part = memory[start : start + PARTS * width].view(PARTS, width)
            began = time.perf_counter()
            kernels.highest(part)
            read = time.perf_counter()
            experts(x, chosen, weights)
            times.append((read - began, time.perf_counter() - read, hit))
    hit = statistics.median(times_of[2] for times_of in times)
    reading, computing = (min(times_of[i] / times_of[2] for times_of in times) * hit for i in (0, 1))
    size = hit * each
    print(
        f"| {name} | {rows} | {hit:.0f} | {size / 2**20:.1f} | {size / reading / 1e9:.1f} "
        f"| {reading * 1e3:.2f} | {computing * 1e3:.2f} | {computing / reading:.2f} |"
    )


if __name__ == "__main__":
    main()
