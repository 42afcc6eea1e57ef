"""Attention of decodes that share a prefix, beside decodes that share nothing: CPU time of one thread.

    python benchmarks/shared_keys.py MODEL [--shared 1000] [--own 50] [--sequences 2 4 8 16 32]

Runs the attention of all layers of a model's shape, without its weights. The figures are the least of the
repeats, so other work on the machine changes them little. Run it in two trees to compare their kernels.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from pathlib import Path
from typing import Final

import torch
from roofline import Shape

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.forward_context import ForwardContext

BLOCK: Final = 32  # tokens


def decodes(count: int, shared: int, own: int) -> tuple[ForwardContext, int]:
    """A step of `count` decodes whose first `shared` tokens are the same blocks; the number of all blocks."""
    common, length = shared // BLOCK, shared + own
    each = -(-length // BLOCK) - common
    tables = [
        [*range(common), *range(first, first + each)] for first in range(common, common + count * each, each)
    ]
    last = length - 1
    step = ForwardContext(
        query_start=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.full((count,), length, dtype=torch.int32),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        slots=torch.tensor([table[last // BLOCK] * BLOCK + last % BLOCK for table in tables]),
        query_lens=(1,) * count,
        lens=(length,) * count,
        block_size=BLOCK,
    )
    return step, common + count * each


def least_ms(shape: Shape, count: int, shared: int, own: int, repeats: int) -> float:
    """Milliseconds of CPU that one step's attention takes."""
    step, blocks = decodes(count, shared, own)
    spec = LayerSpec(shape.kv_heads, shape.head_dim, shape.head_dim)
    backend = CpuAttention()
    backend.allocate((spec,) * shape.layers, blocks, BLOCK, torch.bfloat16, torch.device("cpu"))
    for cache in backend.native_caches or ():
        cache.keys.normal_()
        cache.values.normal_()
    query = torch.randn(count, shape.heads, shape.head_dim).bfloat16()
    key = torch.randn(count, shape.kv_heads, shape.head_dim).bfloat16()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        for layer in range(shape.layers):
            backend.forward(layer, query, key, key, step, scale=shape.head_dim**-0.5)
        times.append((time.process_time() - began) * 1e3)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--shared", type=int, default=1000, metavar="TOKENS")
    parser.add_argument("--own", type=int, default=50, metavar="TOKENS")
    parser.add_argument("--sequences", type=int, nargs="*", default=[2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape.of(args.model)
    print(f"`python {' '.join(sys.argv)}`\n\n{datetime.date.today()}\n")
    print("| sequences | keys of their own, ms | shared, ms | ratio |\n|---|---|---|---|")
    for count in args.sequences:
        own = least_ms(shape, count, 0, args.shared + args.own, args.repeats)
        shared = least_ms(shape, count, args.shared, args.own, args.repeats)
        print(f"| {count} | {own:.2f} | {shared:.2f} | {own / shared:.2f} |", flush=True)


if __name__ == "__main__":
    main()
