"""What this machine can do at most: products of bf16 numbers a second, and bytes read a second.

    python benchmarks/limits.py [--threads 2]

Both are measured through torch, whose products oneDNN computes, with operands far larger than
a core's caches. A limit is the best of several repeats: whatever else the machine did can only lower it.
A virtual machine may share a large last-level cache with others, so a model that fits it can be
read faster than `read_bandwidth` says.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

SHAPES: Final = ((2048, 1024, 3072), (2048, 4096, 4096), (4096, 4096, 4096))  # rows, inner, columns
READ_BYTES: Final = 1 << 30
REPEATS: Final = 5


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Least wall time of one call, after one that is not counted."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def matrix_rate(threads: int) -> float:
    """Floating-point operations a second of the best product of bf16 numbers; one multiply-add is two.

    A processor without instructions for bf16 multiplies them faster as float32.
    """
    rates = []
    with torch_threads(threads), torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32):
            for rows, inner, columns in SHAPES:
                left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype)
                seconds = best_seconds(lambda left=left, right=right: torch.nn.functional.linear(left, right))  # type: ignore[misc]
                rates.append(2 * rows * inner * columns / seconds)
    return max(rates)


def read_bandwidth(threads: int) -> float:
    """Bytes a second of the sum over one array of a GiB."""
    with torch_threads(threads):
        array = torch.ones(READ_BYTES // 4)
        return READ_BYTES / best_seconds(array.sum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    print(f"products: {matrix_rate(threads) / 1e12:.2f} TFLOP/s with {threads} threads")
    print(f"reading memory: {read_bandwidth(threads) / 1e9:.1f} GB/s with {threads} threads")


if __name__ == "__main__":
    main()
