"""Products over codes on a CPU, beside those of weights that the engine rounds itself, by one thread.

    python benchmarks/code_products.py [--rows 1 4 16 128] [--rounds 40]

The matrix is that of gates and ups of a 0.6B (6144 x 1024). Its copies do not fit into the second-level
cache, and the forms take turns. Prints a table: the size of a matrix, and the tenth percentile of the
time of a product in microseconds. On a busy machine only ratios within a column mean something.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.compact import CompactWeight
from serve_app.engine.kernels.grouped import GroupedWeight
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight
from serve_app.engine.kernels.structs import Product

OUTPUTS, INPUTS, COPIES = 6144, 1024, 10
GROUPS: Final = ((4, 128), (4, 64), (4, 32), (4, 16), (8, 128))

Packed = torch.Tensor | CompactWeight


def packed_forms(kernels: Native) -> dict[str, tuple[list[Packed], Product | None]]:
    """The copies of each form, and their product if they ask for one."""
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))
    half = weight.bfloat16()
    plain = [kernels.pack_compact(half, lasting=False) for _ in range(COPIES)]
    forms: dict[str, tuple[list[Packed], Product | None]] = {
        "bfloat16, compact": ([each for each in plain if each is not None], None)
    }
    codes: dict[str, QuantizedWeight | GroupedWeight] = {
        str(kind): QuantizedWeight.of(weight, kind) for kind in Quantization
    }
    for bits, group in GROUPS:
        scales = torch.rand(OUTPUTS, INPUTS // group)
        numbers = torch.randint(2**bits, (OUTPUTS, INPUTS), dtype=torch.uint8)
        zeros = torch.full_like(scales, 2 ** (bits - 1), dtype=torch.uint8)
        codes[f"{bits} bits, groups of {group}"] = GroupedWeight(numbers, scales, zeros, group, bits)
    for name, each in codes.items():
        copies: list[Packed] = [kernels.pack_quantized(each, lasting=False) for _ in range(COPIES)]
        forms[name] = copies, each.product
    return forms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 128])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    kernels = native()
    if kernels is None:
        raise SystemExit("there are no native kernels on this machine")
    torch.set_num_threads(1)
    forms = packed_forms(kernels)
    found: dict[str, list[float]] = {name: [] for name in forms}
    for rows in given.rows:
        x = torch.randn(rows, INPUTS)
        times: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(given.rounds):
            for name, (copies, product) in forms.items():
                began = time.perf_counter()
                for each in copies:
                    kernels.linear(x, each, None, OUTPUTS, product=product)
                times[name].append((time.perf_counter() - began) / len(copies))
        for name, each_time in times.items():
            found[name].append(sorted(each_time)[len(each_time) // 10] * 1e6)
    print("| form | MiB | " + " | ".join(f"{rows} rows" for rows in given.rows) + " |")
    print("|---|---|" + "---|" * len(given.rows))
    for name, values in found.items():
        first = forms[name][0][0]
        size = (first.data if isinstance(first, CompactWeight) else first).nbytes / 2**20
        print(f"| {name} | {size:.2f} | " + " | ".join(f"{value:,.0f}" for value in values) + " |")


if __name__ == "__main__":
    main()
