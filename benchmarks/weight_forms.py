"""Products of two builds of the CPU kernels, by the form of the weights and the number of rows.

    python benchmarks/weight_forms.py --sources OTHER/serve_app/engine/kernels/src [--rows 1 2 4 8 16 32]
        [--forms compact whole int8 int4]

The weights come from memory: those of one pass do not fit into the caches. The builds take turns, in random
order, at the same packed weights, and their results are compared bit for bit. Prints a Markdown table of
medians and their ratios, the other build's over ours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from kernels_ab import compiled, loaded

from serve_app.engine.kernels.compact import CompactWeight
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization, QuantizedWeight
from serve_app.engine.kernels.structs import Product

OUTPUTS, INPUTS = 6144, 1024
BYTES: Final = 480 << 20  # of the weights of a pass, as bfloat16
FORMS: Final = ("compact", "whole", "int8", "int4")

Packed = torch.Tensor | CompactWeight


def packed_weights(form: str, kernels: Native) -> tuple[list[Packed], Product | None]:
    """The weights of a pass in a form, and their product if they ask for one."""
    count = BYTES // (2 * OUTPUTS * INPUTS)

    def weight() -> torch.Tensor:
        return torch.randn(OUTPUTS, INPUTS, dtype=torch.bfloat16) * INPUTS**-0.5

    if form in set(Quantization):
        codes = QuantizedWeight.of(weight(), Quantization(form))
        return [kernels.pack_quantized(codes) for _ in range(count)], codes.product
    pack: Callable[[torch.Tensor], Packed | None]
    pack = kernels.pack_compact if form == "compact" else kernels.pack_weight
    forms = [pack(weight()) for _ in range(count)]
    return [made for made in forms if made is not None], None


def compare(
    builds: Mapping[str, Native], form: str, rows: list[int], turns: int
) -> dict[int, dict[str, float]]:
    """Median milliseconds of a pass by rows and build. Raises SystemExit if the builds' results differ."""
    weights, product = packed_weights(form, loaded())
    medians = {}
    for count in rows:
        x = torch.randn(count, INPUTS)

        def passed(kernels: Native, x: torch.Tensor = x) -> list[torch.Tensor]:
            return [kernels.linear(x, weight, None, OUTPUTS, product=product) for weight in weights]

        first, second = (passed(kernels) for kernels in builds.values())
        if not all(map(torch.equal, first, second)):
            raise SystemExit(f"{form}: the results of the two builds differ")
        times: dict[str, list[float]] = {name: [] for name in builds}
        for _ in range(turns):
            for name in random.sample(list(builds), len(builds)):
                began = time.perf_counter()
                passed(builds[name])
                times[name].append((time.perf_counter() - began) * 1e3)
        medians[count] = {name: statistics.median(times[name]) for name in builds}
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, help="of the other build")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    with compiled(options.sources) as other:
        builds = {"other": other, "ours": loaded()}
        print("| weights | rows | other ms | ours ms | ratio |\n|---|---|---|---|---|")
        for form in options.forms:
            for rows, times in compare(builds, form, options.rows, options.turns).items():
                before, after = times["other"], times["ours"]
                print(f"| {form} | {rows} | {before:.1f} | {after:.1f} | {before / after:.2f} |", flush=True)


if __name__ == "__main__":
    main()
