"""What bfloat16 weights of twelve bits save: the time of products whose weights come from memory.

    python benchmarks/compact_weights.py [--inputs 1024] [--outputs 6144] [--rows 1 4 16 32 256]

Both forms of the same weights are multiplied in turn, in one process; the figure is the least of the repeats.
Their results are compared bit for bit. The weights of one pass do not fit into the caches.
"""

from __future__ import annotations

import argparse
import time

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.compact import CompactWeight

BYTES = 600 << 20  # of the weights of a pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=6144)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32, 256])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    kernels = native()
    if kernels is None:
        raise SystemExit("no native kernels on this machine")
    n, k = options.outputs, options.inputs
    count = max(1, BYTES // (2 * n * k))
    weights = [torch.randn(n, k, dtype=torch.bfloat16) * k**-0.5 for _ in range(count)]
    began = time.perf_counter()
    whole = [kernels.pack_weight(weight) for weight in weights]
    packed = time.perf_counter()
    compact = [made for weight in weights if (made := kernels.pack_compact(weight)) is not None]
    ended = time.perf_counter()
    share = sum(form.data.nbytes for form in compact) / sum(form.nbytes for form in whole)
    print(f"{count} weights [{n}, {k}], packed in {packed - began:.2f} s")
    print(f"compact: {share:.1%} of the bytes, packed in {ended - packed:.2f} s")
    print("| rows | bfloat16, ms | compact, ms | ratio | GB/s | GB/s |\n|---|---|---|---|---|---|")
    size = 2 * n * k * count / 1e6
    for rows in options.rows:
        x = torch.randn(rows, k)

        def one_pass(forms: list[torch.Tensor] | list[CompactWeight], x: torch.Tensor = x) -> float:
            began = time.perf_counter()
            for form in forms:
                kernels.linear(x, form, None, n)
            return (time.perf_counter() - began) * 1e3

        for first, second in zip(whole, compact, strict=True):
            if not torch.equal(kernels.linear(x, first, None, n), kernels.linear(x, second, None, n)):
                raise SystemExit("the results differ")
        times = [(one_pass(whole), one_pass(compact)) for _ in range(options.repeats)]
        a, b = (min(column) for column in zip(*times, strict=True))
        print(f"| {rows} | {a:.1f} | {b:.1f} | {a / b:.2f} | {size / a:.1f} | {share * size / b:.1f} |")


if __name__ == "__main__":
    main()
